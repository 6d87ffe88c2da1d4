"""An audit of a table of your own, from a DataFrame to one HTML page.

python examples/own_csv.py            # writes report.html here
"""

import numpy as np
import pandas as pd

import leakscope as ls

rng = np.random.default_rng(0)  # the made-up table; leave this out and read your own file
gender = rng.choice(["f", "m"], 1_200)
age = rng.normal(60, 10, 1_200) + 6 * (gender == "m")
died = rng.random(1_200) < 1 / (1 + np.exp(-(age - 60) / 10))
ward = rng.choice(["A", "B", "C"], 1_200)
table = pd.DataFrame({"age": age.round(1), "ward": ward, "gender": gender, "died": died})

report = ls.audit(table, label="died", secret="gender", rounds=3, trials=500, rehearsals=500)
report.save("report.html")  # a name without .html: a folder with plan, results, page and numbers
print(report)

numbers = report.frame()  # every measure of every game is a row
right = numbers.query("about == 'leakage' and measure == 'success'")
print(right[["id", "value", "low", "high", "guessing"]].to_string(index=False))
