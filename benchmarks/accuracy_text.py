"""The prose of docs/accuracy.md."""

from accuracy_data import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "accuracy.md"

FOREWORD = """# How accurate the predictions are

Written by `make accuracy`; change `benchmarks/accuracy_text.py`, not this file. It needs a folder of public measurements
(`STEPSCOPE_SHARED`) that is not part of the repository: continuous batching on H100, H200, B200 and B300 from
`silicon_sample.csv` of ai-dynamo/aiconfigurator (Apache-2.0; InferenceX and NVIDIA sweeps), a decode-only sweep from
ai-dynamo 0.7.0 (Apache-2.0), FasterTransformer on A100 from NVIDIA's guides (Apache-2.0), and one table of the Databricks
inference engineering post (figures quoted as facts).

Every figure is on points the prediction did not see. A cell reads: median size of the relative error in %, share of the
points within 6 %, share within 15 %.

* *Data sheet x 0.6*: (weights + KV) / (0.6 x peak bandwidth). *One-point bandwidth*: the same with the bandwidth measured
  at the lowest load. *Batch only*, *KV only*: a constant and one slope. *Four-term least squares*: constant, sequences,
  bytes, prompt tokens. The last three are cross-validated like ours, with the same five folds.
* *Ours, uncalibrated*: data sheet and pooled defaults; the series and all copies of it (the same times under another
  name, such as DeepSeek R1 and V3) are left out of the pool.
* *Ours, 5 points*: what a calibration measures - lowest and highest batch, short and long, the most prefill-heavy load -
  judged on the rest. *Ours, cross-validated*: five folds. Both with the prior of the pool that never saw the series.

The columns, the form of the terms and the spread of the priors were chosen with these same measurements in view (by
cross-validation, but the choice itself is not cross-validated): take a tenth or so off when you expect the same of a new
engine.
"""

MISSES = """What is missed, and why:

* *Dense, SGLang* are three series of 63 points. Times of neighbouring loads differ by 4 % without a trend (16 sequences,
  1,024 tokens in, 128 / 256 / 512 out: 7.82, 7.57, 7.97 ms), and two thirds of the points are prefill-heavy. One series
  has nine points with batches of 48 to 512 and long queues, where concurrency is not the batch.
* *Dense, TensorRT-LLM*: the six points beyond 15 % are Llama 8B on eight H100, where the sweep itself jumps (128
  sequences, 1,024 in: 22.1 ms with 128 out, 9.8 with 256, 10.2 with 512). The other six series have none.
* *MoE, SGLang*: most of the points beyond 15 % are DeepSeek fp4 on eight B200, listed under two names, where 4 sequences
  take 8.3, 9.1 and 12.4 ms in three scenarios and the step from 16 to 32 sequences costs 50 % in one of them: scenarios
  of one series were run with different recipes. A constant of its own per scenario would fit, and would predict nothing.
* *From 5 points*, what lies between the lowest and the highest batch rests on the form of the law, and for mixtures of
  experts also on routing that is not uniform: the bytes of the expected distinct experts are an upper estimate.
* The *decode-only sweep* has no target from 5 points, and none is possible: its longest and its widest loads (1 x 115,000
  and 369 x 350 tokens) are five points of two different machines, one with long contexts side by side, which read up to
  four times slower than one alone, one past the 256-token knee.
"""

UNCALIBRATED_TEXT = """## Without any calibration

Wanted of dense models on engines of today: median at most 6 %, at least 85 % within 15 %. For comparison, the README of the
collection gives for aiconfigurator 0.12.0, not fitted to these rows: 186 points of dense vLLM 7.4 / 44 / 74, 584 dense
points of all engines 12.5 / 29 / 58, 62 MoE points 20.8 / 11 / 42 (quoted, not run again here).

FasterTransformer's eleven series range from 350 million to 530 billion parameters on up to 32 GPUs of several machines;
both ends are outside what the others tell. For mixtures of experts the pool says little more than the order of magnitude,
and its bounds say so: calibrate them. Series of 64 GPUs that are several instances are left out of the MoE pool.
"""

MPT_TEXT = """## MPT-7B on one A100-40GB, from one point

512 tokens in, 64 out, static batches. One calibration point (batch 64, the figure with the most digits); everything else is
the prior, the prefill term included, fitted without this table. Wanted: at most 5 % everywhere. Missed at batch 4 by one
point: that figure is printed with two digits (3.2 requests/s, 3.15 to 3.25), so 1.6 points of it are rounding.
"""

TERMS_TEXT = """## What each term is worth

Cross-validated, each term beyond the plain four held at 0 in turn. A separate bandwidth for the KV cache is always there.
Context cost and the 256-token passes pay in the decode-only sweep (long contexts, and up to 1,573 sequences), the growth of
prefill on dense vLLM and SGLang, the logarithm of the batch on TensorRT-LLM and mixtures of experts, the prompt terms on
TensorRT-LLM, FasterTransformer and SGLang. Tried and dropped: a square root of n instead of the logarithm (worse in five
groups of eight), a knee in prompt tokens at 128 to 1,024 (each helps another engine), P x context and P^2, KV^0.8 and
KV^1.2, passes of 128 tokens, KV x n; choosing terms per series by leave-one-out (unstable on 12 to 18 points).
"""
