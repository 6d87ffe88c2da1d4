"""An audit of a table of your own, from a CSV file to one HTML page.

python examples/own_csv.py            # writes patients.csv and report.html here
"""

import numpy as np
import pandas as pd

import leakscope as ls

rng = np.random.default_rng(0)  # the made-up table; leave this out and read your own file
gender = rng.choice(["f", "m"], 1_200)
age = rng.normal(60, 10, 1_200) + 6 * (gender == "m")
died = rng.random(1_200) < 1 / (1 + np.exp(-(age - 60) / 10))
table = {"age": age.round(1), "ward": rng.choice(["A", "B", "C"], 1_200), "gender": gender, "died": died}
pd.DataFrame(table).to_csv("patients.csv", index=False)

data = ls.from_csv("patients.csv", label="died", secrets=("gender",))
report = ls.audit(data, secret="gender", rounds=3, trials=500, rehearsals=500)
report.save("report.html")

for result in report.results:
    success = ls.Estimate(**result["estimates"]["success"])
    print(f"{result['cell']['id']}: {success}, guessing {result['guessing']:.3f}")
