"""The prose of docs/accuracy.md."""

from accuracy_data import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "accuracy.md"

FOREWORD = """# How accurate the predictions are

Written by `make accuracy`; change `benchmarks/accuracy_text.py`, not this file. It needs a folder of public
measurements (`STEPSCOPE_SHARED`) that is not part of the repository: continuous batching on H100, H200, B200 and B300
from `silicon_sample.csv` of ai-dynamo/aiconfigurator (Apache-2.0; InferenceX and NVIDIA sweeps), a decode-only sweep
from ai-dynamo 0.7.0 (Apache-2.0), FasterTransformer on A100 from NVIDIA's guides (Apache-2.0), and one table of the
Databricks inference engineering post (figures quoted as facts).

Prompt tokens of a closed loop are those of the others: nobody decodes while his own prompt is computed, so of the
collection's sequences x input / output per step each gap holds (sequences - 1) / sequences, for all methods alike.

Every figure is on points the prediction did not see. A cell reads: median size of the relative error in %, share of
the points within 6 %, share within 15 %.

* *Data sheet x 0.6*: (weights + KV) / (0.6 x peak bandwidth). *One-point bandwidth*: the same with the bandwidth
  measured at the lowest load. *Batch only*, *KV only*: a constant and one slope. *Four-term least squares*: constant,
  sequences, bytes, prompt tokens. The last three are cross-validated like ours, with the same folds.
* *Ours, uncalibrated*: data sheet and pooled defaults; the series and all copies of it (the same times under another
  name, such as DeepSeek R1 and V3) are left out of the pool.
* *Ours, 5 points*: what a calibration measures - lowest and highest batch, short and long, the most prefill-heavy
  load - judged on the rest. *Ours, cross-validated*: five folds, three times with other folds (one split alone moves
  a group's shares by a point or two). Both with a prior from a pool that never saw the series; `stepscope fit` uses
  the committed table instead, whose pool did. How far prices scatter around the pool, and which run high together, is
  taken from the other series of today's engines (`benchmarks/accuracy_scatter.py`). The pools around which those
  scatter did see the judged series: left out of them too, shares of the dense groups moved by two points at most.

The terms and their form, the spread and strength of the priors and the weights of the pool were chosen with these
same measurements in view, after some hundred variants: each by cross-validation or with series left out, but the
choice itself is not cross-validated. Expect larger errors of a new engine.
"""

MISSES = """A figure in bold misses its target. Why:

* *Dense, SGLang* are three series of 63 points. Times of neighbouring loads differ by 5 % without a trend (16
  sequences, 1,024 tokens in, 128 / 256 / 512 out: 7.82, 7.57, 7.97 ms). One series has nine points for
  eleven prices. Fitted to all of its points, the law has 92.1 % within 6 %.
* *Dense, TensorRT-LLM*: the points beyond 15 % are all Llama 8B on eight H100, where the sweep itself jumps (128
  sequences, 1,024 in: 22.1 ms with 128 out, 9.8 with 256, 10.2 with 512). Fitted to all of its points, the law has
  98.0 % within 15 %: the target is what it reaches on points that it has seen.
* *MoE, SGLang*: half of the points beyond 15 % are DeepSeek fp4 on B200, under two names, where 4 sequences
  take 8.3, 9.1 and 12.4 ms in three scenarios, and 32 take 50 % longer than 16 in one of them: one series seems to
  hold several recipes. A constant per scenario would fit them, and predict nothing.
* *From 5 points*, what lies between the lowest and the highest batch rests on the form of the law, and for mixtures
  of experts also on routing that is not uniform: the bytes of the expected distinct experts are an upper estimate.
  For *MoE on SGLang* counting only the others' prompt tokens, which helps the dense groups, costs from 5 points half a
  point of the median and four of the share within 6 % (with the old prior 4.9 / 57 / 87 before, 5.4 / 54 / 83 after).
* The *decode-only sweep* has no target from 5 points. Its lowest batch is one sequence of up to 115,000 tokens, whose
  tokens cost a third of what they cost from two sequences on (perhaps because the sweep's ITL holds prompts of the
  others); its highest lies past the 256-token knee. Both ends say little about the middle.

What was tried against the rest, and did not help in most groups: two, three or one strength of the prior, from 0.03 to
1; other cut-offs of the robust weights, down to nearly absolute errors; a shift of the pooled prices by the mean of
the series' deviations (from 5 points better, without calibration far worse); a growth with log2(1 + n) in the pool;
more weight for other engines in the pool. What did: prices that scatter together, as the other series show (from 5
points, within 6 %: dense TensorRT-LLM 79 to 82 %, MoE on vLLM 63 to 68 %, on SGLang 52 to 55 %), and calling no point
an outlier where there are fewer than eight.
"""

UNCALIBRATED_TEXT = """## Without any calibration

Wanted of dense models on engines of today: median at most 6 %, at least 85 % within 15 %. For comparison, the README
of the collection gives for aiconfigurator 0.12.0, not fitted to these rows: 186 points of dense vLLM 7.4 / 44 / 74,
584 dense points of all engines 12.5 / 29 / 58, 62 MoE points 20.8 / 11 / 42 (quoted, not run again here; our own run
of it, on the points both cover, is below).

FasterTransformer's eleven series range from 350 million to 530 billion parameters on up to 32 GPUs of several
machines; both ends are outside what the others tell. For mixtures of experts the pool says little more than the order
of magnitude, and its bounds say so: calibrate them. MoE series of more than 16 GPUs, which are several instances, are
left out of the pool.
"""

BESIDE_TEXT = """## Beside aiconfigurator

aiconfigurator (ai-dynamo/aiconfigurator, Apache-2.0) plans deployments: it adds up kernel times measured on each GPU.
`benchmarks/run_aiconfigurator.py` asked it for every measured load, without network, and says how to do it again;
`benchmarks/aiconfigurator.json` keeps the answers. Median / within 6 % / within 15 %, both sides without any
measurement of the series. Wanted: better on the points both cover; a figure of ours in bold is not as good as its.

How it was asked: its own default mode (measured kernels only), request lengths as served, one prompt per step as its
own command line assumes, tensor and expert parallelism as measured; the decode-only sweep as one decode step. Weight
formats after its own sample of measurements, and where it has no kernel of that format the checkpoint's; attention in
16 bits where it has none of its first choice. This order was settled with its errors in view; other formats change some
MoE series a lot, dense ones hardly have a choice. Not covered: TensorRT-LLM's gpt-oss on two and more GPUs (no expert
kernels at those shapes), series of more than 16 GPUs (several instances under one name), FasterTransformer and MPT-7B
(it models neither).

What to hold against the comparison, either way: its kernels are mostly of one recent version per engine (vLLM 0.24.0,
TensorRT-LLM 1.3.0rc20, SGLang 0.5.14), the measurements of older or unstated ones; its authors set some of its
corrections on the collection that these points come from; and our pool holds series of the same engines and GPUs,
though never the one that is judged.

Where ours is not better: of mixtures of experts on TensorRT-LLM the pool cannot tell recipes apart (DeepSeek R1 in fp8
on eight H200 comes out 30 % too slow for one version and 39 % too fast for another), and in the decode-only sweep both
are far too fast on Llama 70B (medians of its series: 22 to 35 % its, 23 to 27 % ours). Calibrate those.
"""

MPT_TEXT = """## MPT-7B on one A100-40GB, from one point

512 tokens in, 64 out, static batches. One calibration point (batch 64, the figure with the most digits); everything
else is the prior, the prefill term included, fitted without this table. Wanted: at most 5 % everywhere. How prices
scatter is taken from today's engines, as everywhere; with FasterTransformer's own series among them batch 4 would be
7.5 % off. That figure is printed with two digits (3.2 requests/s, 3.15 to 3.25): 1.6 points of its error may be
rounding.
"""

TERMS_TEXT = """## What each term is worth

Cross-validated, each term beyond the plain four held at 0 in turn; a separate bandwidth for the KV cache is always
there. Context cost and the 256-token passes pay in the decode-only sweep (long contexts, up to 1,573 sequences), the
growth of prefill on dense vLLM and SGLang, the logarithm of the batch nearly everywhere, the two prompt terms a little
and each in other groups. Tried and dropped: a square root of n instead of the logarithm (worse in six groups of
eight), a knee in prompt tokens at 128 to 1,024 (each helps another engine), P x context, P^2, KV^0.8, KV^1.2, KV x n,
passes of 128 tokens, and choosing the terms of each series by leave-one-out (unstable on 12 to 18 points).

The compute roof, max(memory, compute), is looked for in every fit of a known model and GPU, and kept where loads of
several batches lie on both sides of the knee and left-out errors fall by more than two standard errors. Fitted to
all of its points, no public series keeps one: few reach the knee, and in the decode-only sweep the passes fit better
(without passes, with the roof: 5.6). Both stay, the passes for what was measured, the roof for engines that do show
it: a known roof between 0.3 and 0.6 of the peak is found to 11 % from synthetic loads with 2 % of noise, and none
where there is none (`tests/core/test_roof.py`).
"""
