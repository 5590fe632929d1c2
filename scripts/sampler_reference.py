#!/usr/bin/env python3
"""The stages of the sampler in float64, from their definitions: what src/sampler is tested against.

Writes tests/data/sampler.json: 300 logits, and for each case a chain, its parameters and the candidates that are left,
as [id, probability], best first. Python's own numbers, full sorts, the plain quadratic search for repetitions: nothing
of the program's ways. A case whose cut falls within 1e-5 of a candidate is refused, since f32 could fall on its other
side.

  sampler_reference.py > tests/data/sampler.json
"""

import json
import math
import random

MARGIN = 1e-5


def far(a, b):
    assert abs(a - b) > MARGIN * max(1.0, abs(a), abs(b)), f"a cut at {a} is too near to {b}"
    return True


def softmax(logits):
    best = max(logits.values())
    weights = {i: math.exp(x - best) for i, x in logits.items()}
    total = sum(weights.values())
    return {i: w / total for i, w in weights.items()}


def ranked(values):
    return sorted(values, key=lambda i: (-values[i], i))


def entropy(p):
    return -sum(x * math.log(x) for x in p.values() if x > 0)


def top_k(logits, k):
    return {i: logits[i] for i in ranked(logits)[:k]}


def top_p(logits, p):
    probabilities, kept, reached = softmax(logits), {}, 0.0
    for i in ranked(logits):
        kept[i] = logits[i]
        reached += probabilities[i]
        if far(reached, p) and reached >= p:
            break
    return kept


def min_p(logits, p):
    least = max(logits.values()) + math.log(p)
    return {i: x for i, x in logits.items() if far(x, least) and x >= least}


def top_n_sigma(logits, n):
    mean = sum(logits.values()) / len(logits)
    sigma = math.sqrt(sum((x - mean) ** 2 for x in logits.values()) / len(logits))
    least = max(logits.values()) - n * sigma
    return {i: x for i, x in logits.items() if far(x, least) and x >= least}


def typical(logits, p):
    probabilities = softmax(logits)
    expected = entropy(probabilities)
    distance = {i: abs(-math.log(x) - expected) for i, x in probabilities.items()}
    kept, reached = {}, 0.0
    for i in sorted(logits, key=lambda i: (distance[i], -logits[i], i)):
        kept[i] = logits[i]
        reached += probabilities[i]
        if far(reached, p) and reached > p:
            break
    return kept


def xtc(logits, threshold):
    probabilities = softmax(logits)
    likely = [i for i in ranked(logits) if far(probabilities[i], threshold) and probabilities[i] >= threshold]
    return {i: x for i, x in logits.items() if i not in likely[:-1]}


def temperature(logits, t, spread=0.0, exponent=1.0):
    if spread > 0 and len(logits) > 1:
        share = entropy(softmax(logits)) / math.log(len(logits))
        low, high = max(0.0, t - spread), t + spread
        t = low + (high - low) * share**exponent
    return {i: x / t for i, x in logits.items()}


def penalties(logits, text, last_n, repeat, presence, frequency):
    out = dict(logits)
    window = text[-last_n:] if last_n > 0 else text
    for i in set(window) & set(out):
        x = out[i] * repeat if out[i] <= 0 else out[i] / repeat
        out[i] = x - window.count(i) * frequency - presence
    return out


def dry(logits, text, last_n, multiplier, base, allowed):
    text = text[-last_n:] if last_n > 0 else text
    longest = {}
    for end in range(1, len(text)):
        length = 0
        while length < end and text[end - 1 - length] == text[-1 - length]:
            length += 1
        if length >= allowed:
            longest[text[end]] = max(longest.get(text[end], 0), length)
    return {i: x - (multiplier * base ** (longest[i] - allowed) if i in longest else 0.0) for i, x in logits.items()}


def mirostat(logits, cut):
    best = ranked(logits)[0]
    surprise = {i: -math.log2(p) for i, p in softmax(logits).items()}
    return {i: x for i, x in logits.items() if i == best or (far(surprise[i], cut) and surprise[i] <= cut)}


def main():
    rng = random.Random(10)
    logits = [round(rng.gauss(0, 2) + (4 if i % 37 == 5 else 0), 3) for i in range(300)]
    text = [rng.randrange(12) * 5 for _ in range(200)]
    text += text[40:46]
    given = dict(enumerate(logits))
    usual = {"repeat": 1.3, "presence": 0.4, "frequency": 0.2}
    steps = {
        "top_k": lambda l, k=40: top_k(l, k),
        "top_p": lambda l: top_p(l, 0.9),
        "min_p": lambda l: min_p(l, 0.05),
        "top_n_sigma": lambda l: top_n_sigma(l, 1.5),
        "typ_p": lambda l: typical(l, 0.87),
        "xtc": lambda l: xtc(l, 0.06),
        "temperature": lambda l: temperature(l, 0.7),
        "penalties": lambda l: penalties(l, text, 64, **usual),
        "dry": lambda l: dry(l, text, -1, 0.8, 1.75, 2),
    }
    chains = [[name] for name in steps]
    chains += [
        ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
        ["temperature", "min_p", "top_p", "top_k"],
        ["top_k", "dry", "xtc", "penalties", "top_p"],
        ["typ_p", "xtc", "temperature", "penalties"],
        ["dry", "temperature", "top_n_sigma", "typ_p"],
    ]
    cases = []

    def add(left, **case):
        probabilities = softmax(left)
        case["left"] = [[i, float(f"{probabilities[i]:.9g}")] for i in ranked(probabilities)]
        cases.append(case)

    for chain in chains:
        left = given
        for name in chain:
            left = steps[name](left)
        add(left, chain=";".join(chain))
    for spread, exponent in [(0.5, 1.0), (0.5, 2.5), (2.0, 0.5)]:
        left = temperature(top_k(given, 40), 0.7, spread, exponent)
        add(left, chain="top_k;temperature", dynatemp=[spread, exponent])
    for target in [1.0, 2.0, 3.5]:
        add(mirostat(temperature(given, 0.7), 2 * target), mirostat=target)
    print("{")
    print(f'"logits": {json.dumps(logits)},')
    print(f'"text": {json.dumps(text)},')
    print('"cases": [')
    print(",\n".join(json.dumps(case) for case in cases))
    print("]}")


if __name__ == "__main__":
    main()
