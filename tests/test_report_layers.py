"""What the report and the terminal say of audits layer by layer: the map, the plan, the paper's claims."""

from __future__ import annotations

import copy
import json
import math
import re
from statistics import mean

import pytest
from test_report import HOSTILE, Tags, failed, page, result, tables_after_figures
from test_report_defenses import audit
from test_report_membership import federation, rows_of

from leakscope.layer_maps import layer_maps, lines

LAYERS = {"conv1": 456, "conv2": 2_416, "fc1": 48_120, "fc2": 10_164, "fc3": 170}
LEAKS = {"conv1": -0.013, "conv2": 0.044, "fc1": 0.21, "fc2": 0.068, "fc3": 0.03}
MOST = math.log(2)


def measure(value, half=0.03, low=None, high=None, n=400):
    given = {"name": "m", "value": value, "level": 0.95, "n": n, "method": "bootstrap"}
    return given | {
        "low": value - half if low is None else low,
        "high": value + half if high is None else high,
    }


def risk(value, half=0.03):
    share = max(0.0, value) / MOST
    return {
        "information": measure(value, half),
        "auroc": measure(0.5 + 0.5 * share**0.5, 0.04),
        "advantage": measure(share**0.5, low=max(0.0, share**0.5 - 0.08), high=share**0.5 + 0.08),
        "family": "forest on per-input maxima",
    }


def subspace(name, p=0.48):
    distance = {"conv1": 2.04, "conv2": 3.35, "fc1": 8.24, "fc2": 5.02, "fc3": 0.26}.get(name, 4.0)
    table = {"distance": measure(distance, 0.1), "normalised": distance / 7, "rank": 6}
    return table | {"null_mean": distance - 0.01, "null_sd": 0.05, "p": p}


def latent(secret="Male", *, leaks=None, half=0.03, labels=0.002, p=0.48, most=MOST):
    leaks = LEAKS if leaks is None else leaks
    return {
        "secret": secret,
        "values": ["no", "yes"],
        "most": most,
        "layers": {name: risk(value, half) for name, value in leaks.items()},
        "together": risk(0.25),
        "labels": None if labels is None else risk(labels, 0.01),
        "subspace": {name: subspace(name, p) for name in leaks if name != "conv2"},
        "two_sample": {name: {"log_ratio": measure(value * 4), "p": 0.01} for name, value in leaks.items()},
    }


def original(shares=(0.02, 0.15, 0.33, 0.2), half=0.03, most=19.739):
    names = list(LAYERS)
    sets = {}
    for i, share in enumerate(shares):
        pair = names[i : i + 2]
        sets["+".join(pair)] = {
            "information": measure(most * share, most * half),
            "ssim": measure(0.15 + share / 2),
            "recovered": measure(0.0, low=0.0, high=0.37, n=8),
            "failures": i,
            "layers": pair,
        }
    whole = {"information": measure(most * 0.4, most * half), "ssim": measure(0.29)}
    whole |= {"recovered": measure(0.125, low=0.003, high=0.527, n=8), "failures": 0, "layers": names}
    sets["all layers"] = whole
    told = {"trivial_ssim": 0.146, "most": most, "images": 8, "attack": "InvertingGradients(steps=600)"}
    return {"sets": sets} | told


def sensitivity():
    values = {"conv1": 0.43, "conv2": 0.61, "fc1": 1.0, "fc2": 0.57, "fc3": 0.47}
    table = {
        norm: {name: measure(value * scale, 0.05 * scale) for name, value in values.items()}
        for norm, scale in (("F", 1.0), ("1", 900.0), ("inf", 0.01))
    }
    relative = {"conv1": 2.8, "conv2": 2.3, "fc1": 1.8, "fc2": 0.7, "fc3": 0.3}
    return table | {"relative": {name: measure(value, 0.2) for name, value in relative.items()}}


def taken(kind, layers=("fc1",), left=0.01, *, accuracy=0.84, std=None, secret="Male", half=0.03):
    table = {"measure": kind, "layers": list(layers), "std": std, "secret": secret}
    found = risk(left, half)
    return table | {
        "information": found["information"],
        "advantage": found["advantage"],
        "accuracy": measure(accuracy, 0.01),
    }


def protection(secret="Male"):
    return [
        taken("none", (), 0.25, accuracy=0.85, secret=secret),
        taken("keep local", ("fc1",), 0.06, accuracy=0.85, secret=secret),
        taken("keep local", ("fc1", "fc2"), 0.02, accuracy=0.843, secret=secret),
        taken("freeze", ("fc1", "fc2"), 0.02, accuracy=0.81, secret=secret),
        taken("noise", ("fc1",), 0.12, accuracy=0.849, std=1e-4, secret=secret),
        taken("noise", ("fc1",), 0.01, accuracy=0.79, std=1e-3, secret=secret),
    ]


def correlation(
    measure="subspace distance", other="latent information", r=0.69, low=0.35, high=0.87, note=""
):
    return {
        "measure": measure,
        "with": other,
        "r": r,
        "low": low,
        "high": high,
        "p": 0.001,
        "n": 20,
        "note": note,
    }


def localisation(*latents, seed=0, name="celeba", defense=None, game=None, layers=None, **changes):
    kinds = {"conv": "convolution", "fc": "linear"}
    table = {
        "layers": [
            {"name": layer, "parameters": size, "kind": kinds.get(layer.rstrip("0123456789"), "other")}
            for layer, size in (layers or LAYERS).items()
        ],
        "latent": list(latents) or [latent()],
        "original": original(),
        "sensitivity": sensitivity(),
        "protection": protection(),
        "correlations": [correlation(), correlation("its random split", r=0.7, note="control")],
        "pictures": None,
    }
    return {
        "format": 1,
        "key": "51ab" * 8,
        "seed": seed,
        "cell": {
            "data": {"name": name},
            "model": {"name": "LeNet"},
            "game": {"name": "LayerAudit", "secrets": ["Male"], "batch": 8, "balanced": True} | (game or {}),
            "defense": defense,
        },
        "localisation": table | changes,
        "utility": {"accuracy": measure(0.85, 0.02), "auroc": measure(0.9, 0.02), "majority": 0.5},
        "data": {"name": name, "label": "Smiling", "records": 9_000, "train": 3_000, "public": 4_000},
        "model": {"name": "LeNet", "parameters": 62_006},
        "versions": {"leakscope": "0.1.0"},
        "seconds": 60,
    }


def broken(reason="DataError: no layers", **changes):
    whole = localisation(**changes)
    return {key: whole[key] for key in ("key", "seed", "cell")} | {"error": reason}


def words(*results):
    return Tags(page(list(results))).text


def the_map(html):
    """The texts and marks of the only layer map."""
    (svg,) = re.findall(r'<svg class="map".*?</svg>', html, re.S)
    return svg


def section(html):
    start = html.index('<section aria-labelledby="layers-1"')
    return html[start : html.index("</section>", start)]


def claim(html, start):
    (row,) = [row for row in rows_of(html, "Mo et al. (paper 001)") if row[0].startswith(start)]
    return row[1], row[2]


def test_the_most_telling_layer_is_named_with_its_information_and_its_lead():
    told = (
        "fc1 gives away most about Male: 0.21 of 0.69 nats (95% interval 0.18 to 0.24), "
        "3.1 times the next layer, fc2."
    )
    assert told in words(localisation())
    assert lines([localisation()])[0] == told
    assert "order is not certain" not in told


def test_overlapping_intervals_leave_the_order_open():
    near = latent("Young", leaks=LEAKS | {"fc2": 0.16, "conv2": 0.155})
    text = "The intervals of fc1, fc2 and conv2 overlap: their order is not certain."
    assert text in words(localisation(near))
    apart = latent("Young", leaks=LEAKS | {"fc2": 0.149})
    assert "order is not certain" not in words(localisation(apart))


def test_a_layer_behind_the_second_may_be_the_one_that_overlaps():
    vague = latent()
    vague["layers"]["fc3"]["information"] = measure(0.03, low=-0.2, high=0.19)
    assert "The intervals of fc1 and fc3 overlap" in words(localisation(vague))


def test_where_no_lower_limit_is_above_zero_no_layer_is_said_to_leak():
    silent = latent(leaks=dict.fromkeys(LAYERS, 0.0) | {"conv2": 0.029})
    html = page([localisation(silent, original=None, sensitivity=None)])
    assert (
        "No layer is shown to give away anything about Male: the highest, conv2, has 0.029 of 0.69 nats "
        "(95% interval −0.001 to 0.059)." in Tags(html).text
    )
    assert 'class="goal"' not in the_map(html)
    assert 'class="dot first"' not in the_map(html)


def test_a_next_layer_that_gives_nothing_is_not_divided_by():
    alone = latent(leaks={"conv1": -0.02, "fc1": 0.3})
    assert "more than 10 times the next layer, conv1" in words(localisation(alone))
    single = latent(leaks={"fc1": 0.3})
    assert "0.33), " not in words(localisation(single))


def test_the_map_has_every_layer_with_kind_and_size_and_every_mark_with_its_interval():
    html = page([localisation(latent(), latent("Young"))])
    svg = the_map(html)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    for name in LAYERS:
        assert texts.count(name) == 2  # above and below
    for word in ("456", "2.42k", "48.1k", "10.2k", "170"):
        assert word in texts
    titles = re.findall(r"<g[^>]*><title>(.*?)</title>", svg)
    assert len(titles) == 2 * (5 + 2) + 5  # secrets on layers, all and labels; sets and all of them
    assert "fc1, Male: 0.21 nats (0.18 to 0.24)" in titles
    assert "all layers, Young: 0.25 nats (0.22 to 0.28)" in titles
    assert "labels counted, Male: 0.002 nats (−0.008 to 0.012)" in titles
    assert "fc1+fc2, inputs: 6.51 nats (5.92 to 7.11)" in titles


def heights(svg, pattern):
    """Where the marks with these words stand, by words."""
    found = re.findall(r'<g[^>]*><title>([^<]*)</title>.*?d="M([\d.]+) ([\d.]+)m[^"]*" class="dot', svg)
    return {words: (float(x), float(y)) for words, x, y in found if re.search(pattern, words)}


def test_marks_stand_at_their_share_of_the_most_that_is_possible():
    sparse = latent("Rare", leaks={name: value / 2 for name, value in LEAKS.items()}, most=MOST / 2)
    svg = the_map(page([localisation(latent(), sparse)]))
    found = heights(svg, r"^(conv2|fc\d), (Male|Rare)")
    for name in ("conv2", "fc1", "fc2", "fc3"):
        male, rare = (
            next(at for words, at in found.items() if words.startswith(f"{name}, {s}"))
            for s in ("Male", "Rare")
        )
        assert male[1] == rare[1]  # half of half as much
        assert male[0] < rare[0]
    levels = {name: at[1] for words, at in found.items() if "Male" in words for name in [words.split(",")[0]]}
    ticks = re.findall(r'<text x="[\d.]+" y="([\d.]+)" text-anchor="end">([\d.]+)%</text>', svg)[-3:]
    (top, most), _, (zero, nothing) = [(float(y) - 4, float(share) / 100) for y, share in ticks]
    assert nothing == 0
    for name, level in levels.items():
        assert level == pytest.approx(zero + (top - zero) * LEAKS[name] / MOST / most, abs=0.11)


def test_a_set_of_two_layers_spans_them():
    svg = the_map(page([localisation()]))
    columns = {
        name: float(x) for x, name in re.findall(r'<text class="name" x="([\d.]+)"[^>]*>([^<]*)</text>', svg)
    }
    spans = re.findall(r"<title>(\w+)\+(\w+), inputs.*?v8m0-4H([\d.]+)", svg)
    starts = re.findall(r"M([\d.]+) [\d.]+v8m0-4H", svg)
    assert [pair[:2] for pair in spans] == [
        ("conv1", "conv2"),
        ("conv2", "fc1"),
        ("fc1", "fc2"),
        ("fc2", "fc3"),
    ]
    for (first, last, end), start in zip(spans, starts, strict=True):
        assert float(start) < columns[first]
        assert float(end) > columns[last]
    middles = {words: x for words, (x, _) in heights(svg, "inputs").items()}
    at = next(x for words, x in middles.items() if words.startswith("fc1+fc2"))
    assert at == pytest.approx((columns["fc1"] + columns["fc2"]) / 2, abs=0.1)


def test_without_reconstructions_the_map_shows_sensitivity_and_says_so():
    svg = the_map(page([localisation(original=None)]))
    assert "inputs were not rebuilt; relative sensitivity, F-norm over that of the gradient" in svg
    assert "original:" not in svg
    marks = heights(svg, r"^(conv|fc)\d: ")
    assert [words.split(" ")[0] for words in marks] == [f"{name}:" for name in LAYERS]
    only = sensitivity()
    del only["relative"]
    assert "inputs were not rebuilt; sensitivity, F-norm" in the_map(
        page([localisation(original=None, sensitivity=only)])
    )


def test_parts_that_are_not_there_are_left_out():
    bare = latent(labels=None) | {"together": None, "subspace": {}, "two_sample": {}}
    html = page([localisation(bare, original=None, sensitivity=None, protection=[], correlations=[])])
    text = Tags(html).text
    for absent in (
        "sensitivity of each",
        "Subspace distance",
        "log ratio",
        "Pearson",
        "Private data",
        "counted",
    ):
        assert absent not in text
    assert "inputs themselves" not in the_map(html)
    assert "No measure was tried." in text
    assert "data:image" not in html
    assert [row[1] for row in rows_of(html, "Mo et al. (paper 001)")] == [
        "Cannot be told", "Holds", "Cannot be told", "Cannot be told", "Cannot be told",
    ]  # fmt: skip


def test_a_cell_with_reconstructions_alone_is_told():
    html = page([localisation(latent=[], protection=[])])
    assert (
        "fc1+fc2 gives away most of the inputs themselves, above a trivial guess: 6.51 of 19.74 nats" in html
    )
    assert "latent:" not in the_map(html)


def test_the_tables_hold_the_numbers_of_the_data():
    html = page([localisation()])
    row = rows_of(html, "Floored at 0")
    assert row[0][:4] == ["conv1", "−0.013 −0.043 to 0.017", "0.000", "0.500 0.460 to 0.540"]
    assert row[2][:3] == ["fc1", "0.210 0.180 to 0.240", "0.210"]
    assert row[2][5:11] == ["8.240 8.140 to 8.340", "6", "1.177", "8.230", "0.050", "0.480"]
    assert row[1][5] == "–"  # no distance there
    assert [cells[0] for cells in row[5:]] == ["all layers", "counts of labels alone"]
    rebuilt = rows_of(html, "Failed attempts")
    assert rebuilt[1] == [
        "conv2+fc1",
        "2.961 2.369 to 3.553",
        "2.961",
        "0.225 0.195 to 0.255",
        "0.0% 0.0% to 37.0%",
        "1",
    ]
    sensitive = rows_of(html, "Largest entry")
    assert sensitive[0] == [
        "conv1",
        "0.43 0.38 to 0.48",
        "387 342 to 432",
        "0.0043 0.0038 to 0.0048",
        "2.8 2.6 to 3",
    ]
    assert len(tables_after_figures(html)) == 1
    assert "a wide layer scores high by its width alone" in Tags(html).text


def test_the_cheapest_measure_whose_interval_includes_zero_is_recommended():
    (one,) = layer_maps([localisation()])
    assert one.plan.recommended.label == "keep fc1, fc2 local"
    text = words(localisation())
    assert (
        "fc1, fc2 should be kept local (in a trusted execution environment, or sent encrypted only): what is then "
        "given away about Male has an interval that includes 0 and ends below a tenth of certainty (at most 0.050 nats, the upper limit), with a task "
        "accuracy of 84.3% instead of 85.0%. Of 5 measures tried, 3 do so, and this is the cheapest." in text
    )
    assert "Freeze: fc1, fc2; at most 0.050 nats" in text
    assert "Add noise: fc1 (std 0.001); at most 0.040 nats" in text
    assert lines([localisation()])[-1].startswith("Protection: fc1, fc2 should be kept local")
    rows = rows_of(page([localisation()]), "Information, nats")
    assert [row[0] for row in rows][:3] == ["Nothing", "Keep fc1 local", "Keep fc1, fc2 local Recommended"]
    assert rows[0][1:3] == ["85.0% 84.0% to 86.0%", "0.250 0.220 to 0.280"]


def test_of_equal_accuracy_the_measure_on_fewer_parameters_is_cheaper():
    tried = [
        taken("none", (), 0.3),
        taken("keep local", ("fc1", "fc2"), 0.0, accuracy=0.8401),
        taken("keep local", ("fc1",), 0.0, accuracy=0.84),
    ]
    (one,) = layer_maps([localisation(protection=tried)])
    assert one.plan.recommended.layers == ("fc1",)


def test_where_no_measure_is_enough_it_is_said_with_the_nearest():
    tried = [taken("none", (), 0.25), taken("keep local", left=0.1), taken("noise", left=0.06, std=0.001)]
    text = words(localisation(protection=tried))
    assert (
        "None of 2 measures tried is enough for Male: no interval includes 0 and ends below a tenth of certainty. The nearest: noise of std 0.001 on "
        "fc1, at most 0.090 nats, the upper limit." in text
    )
    assert "Keep local: none of 1 tried is enough for Male." in text
    assert layer_maps([localisation(protection=tried)])[0].plan.recommended is None


def test_where_nothing_leaks_nothing_is_recommended():
    tried = [taken("none", (), 0.01), taken("keep local", left=0.0)]
    text = words(localisation(protection=tried))
    assert "No need of a measure was found: with none, the interval of what is given away" in text
    assert (
        "includes 0 and ends below a tenth of certainty for Male (at most 0.040 nats, the upper limit)."
        in text
    )
    assert "should be kept local" not in text
    assert "Yet the audit of the layers did find something; more trials would settle it." in text
    silent = latent(leaks=dict.fromkeys(LAYERS, 0.0)) | {"together": None}
    assert "Yet the audit" not in words(localisation(silent, protection=tried))


def test_an_adversary_who_guessed_has_no_upper_limit():
    guessed = latent(leaks={"conv1": 0.0, "fc1": -0.01})
    guessed["layers"]["conv1"]["information"] = measure(0.0, 0.0)
    tried = [taken("none", (), 0.25), taken("keep local", left=0.0, half=0.0)]
    text = words(localisation(guessed, protection=tried))
    assert "has 0.000 of 0.69 nats (95% interval 0.000 to 0.000): there the adversary found nothing" in text
    assert (
        "includes 0 and ends below a tenth of certainty (the adversary found nothing to go by and guessed, which a better one need not)"
        in text
    )
    assert "at most 0.000 nats" not in text


def test_a_measure_must_be_enough_for_every_secret_or_is_told_for_each():
    tried = [
        *(taken("none", (), 0.3, secret=secret) for secret in ("Male", "Young")),
        taken("keep local", ("fc1",), 0.0, secret="Male"),
        taken("keep local", ("fc1",), 0.2, secret="Young"),
        taken("noise", ("fc1",), 0.0, std=0.1, secret="Young", accuracy=0.6),
        taken("noise", ("fc1",), 0.2, std=0.1, secret="Male", accuracy=0.6),
    ]
    found = lines([localisation(latent(), latent("Young"), protection=tried)])
    advice = [line for line in found if line.startswith("Protection")]
    assert len(advice) == 2
    assert "fc1 should be kept local" in advice[0]
    assert "about Male has" in advice[0]
    assert "Add Gaussian noise of std 0.1 to the gradient of fc1" in advice[1]
    assert "about Young has" in advice[1]


def test_seeds_are_averaged_and_their_spread_is_the_interval():
    values = (0.2, 0.25, 0.27)
    runs = [localisation(latent(leaks=LEAKS | {"fc1": value}), seed=i) for i, value in enumerate(values)]
    runs[1]["localisation"]["latent"][0]["subspace"]["fc1"] |= {"p": 0.9, "rank": 8}
    (one,) = layer_maps(runs)
    (found,) = one.found.latent
    risk = found.layers["fc1"].information
    assert (risk.value, risk.seeds) == (pytest.approx(mean(values)), 3)
    half = 4.302652729911275 * 0.036055512754639894 / math.sqrt(3)  # Student's t, two degrees of freedom
    assert (risk.low, risk.high) == (pytest.approx(mean(values) - half), pytest.approx(mean(values) + half))
    assert found.layers["conv1"].information.value == pytest.approx(-0.013)  # not cut at 0
    assert (found.subspace["fc1"].p, found.subspace["fc1"].rank) == (0.9, "6–8")
    assert "Over 3 seeds" in words(*runs)


def test_a_measure_that_not_every_seed_took_is_marked_and_not_recommended():
    second = [*protection()[:2], taken("keep local", ("fc2",), 0.0, accuracy=0.99)]
    runs = [localisation(), localisation(seed=1, protection=second)]
    (one,) = layer_maps(runs)
    assert one.plan.recommended is None
    text = words(*runs)
    assert "Keep fc2 local with 1 of 2 seeds" in text
    assert (
        "None of 1 measures tried is enough for Male: no interval includes 0 and ends below a tenth of certainty. The nearest: keep fc1 local"
        in text
    )
    assert "With 1 of 2 seeds this was enough, and the others did not take it: keep fc2 local." in text


def test_secrets_that_no_measure_was_audited_for_are_named():
    text = "Measures were audited for Male only. What they leave of Young is not known."
    assert text in words(localisation(latent(), latent("Young")))
    assert "Measures were audited for" not in words(localisation())


def test_layers_that_were_looked_at_together_are_drawn_as_spans():
    pairs = {"conv1+conv2": 0.05, "conv2+fc1": 0.3, "fc1+fc2": 0.2, "fc2+fc3": 0.1}
    html = page([localisation(latent(leaks=pairs), original=None, sensitivity=None, protection=[])])
    assert "conv2+fc1 gives away most about Male: 0.30 of 0.69 nats" in Tags(html).text
    assert the_map(html).count("v8m0-4H") == 4
    assert claim(html, "The first fully") == ("Cannot be told", "Not measured by itself.")
    assert [row[0] for row in rows_of(html, "Floored at 0")][:4] == list(pairs)


def test_noise_that_follows_each_seeds_gradient_is_one_measure():
    runs = [
        localisation(seed=i, protection=[taken("none", (), 0.3), taken("noise", left=0.0, std=std)])
        for i, std in enumerate((0.001, 0.002))
    ]
    (one,) = layer_maps(runs)
    assert one.plan.recommended.label == "noise of std 0.001 to 0.002 on fc1"


def test_claims_are_judged_by_intervals():
    html = page([localisation()])
    verdict, numbers = claim(html, "The first layers give away most of the inputs")
    assert verdict == "Does not hold"
    assert numbers == (
        "Highest: fc1+fc2, 6.51 of 19.74 nats (95% interval 5.92 to 7.11). "
        "conv1+conv2: 0.39 of 19.74 nats (95% interval −0.20 to 0.99)."
    )
    assert claim(html, "The first fully connected layer") == ("Holds", "Male: fc1 0.21 (holds).")
    assert claim(html, "The subspace distance there") == (
        "Does not hold",
        "fc1. Male 8.24, by chance 8.23 ± 0.05 (p = 0.48).",
    )
    verdict, numbers = claim(html, "The first layer is the most sensitive")
    assert (verdict, numbers) == (
        "Does not hold",
        "Highest: fc1, 1 (0.95 to 1.05). conv1: 0.43 (0.38 to 0.48).",
    )
    verdict, numbers = claim(html, "The measures without an attack")
    assert (verdict, numbers) == (
        "Holds",
        "subspace distance with latent information: 0.69 (0.35 to 0.87, n = 20); "
        "what width or chance give: its random split 0.70.",
    )


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((0.5, 0.2, 0.1, 0.1), "Holds"),
        ((0.25, 0.2, 0.1, 0.1), "Cannot be told"),
        ((0.2, 0.25, 0.1, 0.1), "Cannot be told"),
    ],
)
def test_the_first_set_of_layers_must_be_clear_of_all_others(shares, verdict):
    assert claim(page([localisation(original=original(shares))]), "The first layers")[0] == verdict


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ({}, "Holds"),
        ({"fc2": 0.2}, "Cannot be told"),
        ({"fc2": 0.25}, "Cannot be told"),
        ({"conv2": 0.4}, "Does not hold"),
    ],
)
def test_the_first_fully_connected_layer_must_be_clear_of_all_others(others, verdict):
    one = localisation(latent(), latent("Young", leaks=LEAKS | others))
    assert claim(page([one]), "The first fully")[0] == verdict


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ((0.1, 0.9), "Holds"),
        ((-0.1, 0.9), "Cannot be told"),
        ((0.1, 0.68), "Does not hold"),
        ((0.8, 0.9), "Holds"),
    ],
)
def test_a_correlation_holds_if_it_is_above_zero_and_reaches_the_published(limits, verdict):
    one = localisation(correlations=[correlation(r=0.5, low=limits[0], high=limits[1])])
    assert claim(page([one]), "The measures without")[0] == verdict


def test_no_distance_is_part_of_any_order_of_layers():
    wide = localisation(latent(p=0.001))
    huge = copy.deepcopy(wide)
    huge["localisation"]["latent"][0]["subspace"]["conv1"]["distance"] = measure(99.0)
    assert lines([wide]) == lines([huge])
    assert the_map(page([wide])) == the_map(page([huge]))


def test_labels_that_tell_by_themselves_are_said_to():
    assert "with no gradient at all" not in words(localisation())
    assert "Male: the counts of the task’s labels alone give 0.100 nats (0.090 to 0.110)" in words(
        localisation(latent(labels=0.1))
    )


def test_all_layers_that_give_less_than_one_are_a_sign_of_a_weak_adversary():
    text = "All layers at once gave less than one alone about Young: the adversary does not use all"
    assert text in words(localisation(latent(), latent("Young", leaks=LEAKS | {"fc1": 0.26})))
    assert "gave less than one alone" not in words(localisation())


@pytest.mark.parametrize(
    ("leaks", "shares", "word"),
    [
        ((0.3, 0.22), None, "severe"),  # root of a share, less 0.08, is the lower limit of the advantage
        ((0.05, 0.0), None, "substantial"),
        ((0.006, 0.0), None, "slight"),
        ((0.0, 0.0), None, "none"),
        ((0.0, 0.0), (0.9, 0.1, 0.1, 0.1), "severe"),
    ],
)
def test_the_word_follows_the_view_that_tells_most(leaks, shares, word):
    told = latent(leaks=dict(zip(("conv1", "fc1"), leaks, strict=True))) | {"together": None}
    one = localisation(told, original=shares and original(shares), sensitivity=None)
    assert layer_maps([one])[0].severity == word
    assert f'<li class="{word}">' in page([one])
    alone = localisation(latent=[], original=original((0.9, 0.1, 0.1, 0.1)))
    assert layer_maps([alone])[0].severity == "severe"


def test_pictures_come_with_a_warning_and_only_if_they_are_there():
    pair = {"original": "iVBORw0KGgo=", "reconstruction": "iVBORw0KGgp=", "ssim": 0.93, "set": "all layers"}
    forged = pair | {"original": '" onerror="alert(1)'}
    html = page([localisation(pictures=[pair, forged])])
    images = [attrs for tag, attrs in Tags(html).seen if tag == "img"]
    assert [image["src"] for image in images] == [
        "data:image/png;base64,iVBORw0KGgo=",
        "data:image/png;base64,iVBORw0KGgp=",
    ]
    assert "Private data." in Tags(html).text
    assert "SSIM 0.93" in Tags(html).text
    assert "onerror" not in html
    assert "Private data." not in words(localisation())


def test_a_map_is_no_game_no_audit_and_no_federation():
    html = page([result(), audit(), federation(), localisation(), failed(), broken(name="x")])
    tags = Tags(html)
    ids = [attrs["id"] for _, attrs in tags.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for _, attrs in tags.seen if "href" in attrs} <= set(ids)
    assert "2 models audited layer by layer ; 1 audit failed ." in tags.text
    assert "2 secrets, 2 settings" in tags.text  # those of the games alone
    assert layer_maps([result(), audit(), federation(), failed()]) == []


def test_an_audit_that_failed_says_so():
    text = words(broken())
    assert "give a secret away is not known: the measurement failed." in text
    assert "Seed 0 failed: DataError: no layers" in text
    assert lines([broken()]) == ["seed 0 failed: DataError: no layers"]
    half = words(localisation(), broken("out of memory", seed=1))
    assert "Seed 1 failed and is in no number here: out of memory" in half
    late = latent(leaks=LEAKS | {"fc1": 0.6})
    stopped = [localisation(), localisation(late, seed=1) | {"error": "stopped"}]
    assert layer_maps(stopped)[0].found == layer_maps(stopped[:1])[0].found
    empty = localisation(latent(leaks={"fc1": math.nan}), original=None, sensitivity=None)
    assert "no layer with a finite measure" in words(empty)


def test_audits_that_differ_are_told_apart():
    maps = layer_maps([localisation(), localisation(game={"batch": 32}), localisation(name="lfw")])
    assert {one.label for one in maps} == {
        "celeba, LeNet, game batch 8",
        "celeba, LeNet, game batch 32",
        "lfw, LeNet, game batch 8",
    }
    assert f"{maps[0].label}:" in lines(
        [localisation(), localisation(game={"batch": 32}), localisation(name="lfw")]
    )


def test_a_page_of_many_layers_and_secrets_stays_small():
    four = [latent(secret) for secret in ("Male", "Young", "Eyeglasses", "Blond_Hair")]
    kept = [entry for one in four for entry in protection(one["secret"])]
    assert len(section(page([localisation(*four, protection=kept)])).encode()) < 60_000
    deep = {f"block{i}.conv": 0.01 * i for i in range(12)}
    many = [latent(f"secret {i}", leaks=deep) for i in range(9)]
    html = page([localisation(*many, layers=dict.fromkeys(deep, 10), original=None, sensitivity=None)])
    assert len(set(re.findall(r"secret \d", the_map(html)))) == 6
    assert "3 more in the table" in html


def test_no_name_in_an_audit_becomes_markup():
    sizes = {HOSTILE: 10, "fc1": 20}
    bad = latent(HOSTILE, leaks={HOSTILE: 0.3, "fc1": 0.29})
    bad["values"] = [HOSTILE]
    for entry in (*bad["layers"].values(), bad["together"], bad["labels"]):
        entry["family"] = entry["information"]["method"] = HOSTILE
    rebuilt = original()
    rebuilt["sets"] = {HOSTILE: rebuilt["sets"]["fc1+fc2"] | {"layers": [HOSTILE, "fc1"]}}
    rebuilt["attack"] = HOSTILE
    one = localisation(
        bad,
        layers=sizes,
        name=HOSTILE,
        defense={"name": HOSTILE},
        original=rebuilt,
        protection=[
            taken("none", (), 0.3, secret=HOSTILE),
            taken("noise", (HOSTILE,), 0.2, secret=HOSTILE, std=1.0),
            taken(HOSTILE, (HOSTILE,), 0.0, secret=HOSTILE),
        ],
        correlations=[correlation("F sensitivity", HOSTILE, note=HOSTILE), correlation(HOSTILE)],
        pictures=[{"original": HOSTILE, "reconstruction": HOSTILE, "ssim": 1.0, "set": HOSTILE}],
    )
    one["localisation"]["layers"][0]["kind"] = HOSTILE
    one["cell"]["model"] = {"name": HOSTILE, HOSTILE: HOSTILE}
    html = page([one, broken(HOSTILE, name=HOSTILE)], title=HOSTILE, plan=HOSTILE)
    tags = Tags(html)
    assert "<script" not in html
    assert not {"script", "img", "iframe"} & {tag for tag, _ in tags.seen}
    assert not [name for _, attrs in tags.seen for name in attrs if name.startswith("on")]
    assert "<script>alert(1)</script>" in tags.text
    assert HOSTILE.split("<img")[0] in tags.text


def test_the_same_results_give_the_same_page_in_any_order():
    results = [
        localisation(),
        localisation(seed=1),
        localisation(name="lfw"),
        localisation(game={"batch": 32}),
    ]
    assert page(results) == page(json.loads(json.dumps(results)))
    assert page(results) == page(results[::-1])
