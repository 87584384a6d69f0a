// Geometry of a plot: scales, ticks and paths. A point is {time, row}; row is null where the engine said nothing.
const GAP_SPACINGS = 3.5; // more than this many usual spacings without a point: the line breaks
const TIME_STEPS = [15, 30, 60, 120, 300]; // seconds between time labels

function niceTicks(top, wanted) {
  const rough = top / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let i = 0; i * step <= top * 1.0001; i += 1) ticks.push(i * step);
  return ticks;
}

function timeTicks(from, to, wanted) {
  const step = TIME_STEPS.find((size) => (to - from) / size <= wanted) || TIME_STEPS.at(-1);
  const ticks = [];
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) ticks.push(time);
  return { ticks, withSeconds: step < 60 };
}

function usualSpacing(points) {
  const gaps = [];
  for (let i = 1; i < points.length; i += 1) gaps.push(points[i].time - points[i - 1].time);
  gaps.sort((a, b) => a - b);
  return gaps.length ? gaps[Math.floor(gaps.length / 2)] : 5;
}

// Runs of points without a gap in time where every one of `values` is known: [[{time, numbers}], ...].
function runs(points, values, gapSeconds) {
  const found = [];
  let last = -Infinity;
  for (const { time, row } of points) {
    const numbers = row ? values.map((value) => value(row)) : [null];
    if (!numbers.every((number) => known(number))) {
      last = -Infinity;
      continue;
    }
    if (time - last > gapSeconds) found.push([]);
    found.at(-1).push({ time, numbers });
    last = time;
  }
  return found;
}

const spot = (x, y) => `${x.toFixed(1)},${y.toFixed(1)}`;

function linePath(points, value, scale, gapSeconds) {
  return runs(points, [value], gapSeconds)
    .map((run) => {
      const spots = run.map(({ time, numbers }) => spot(scale.x(time), scale.y(numbers[0])));
      // A single point would be invisible as a line.
      return run.length === 1 ? `M${spots[0]}h2` : `M${spots.join("L")}`;
    })
    .join("");
}

function bandPath(points, low, high, scale, gapSeconds) {
  return runs(points, [low, high], gapSeconds)
    .map((run) => {
      const upper = run.map(({ time, numbers }) => spot(scale.x(time), scale.y(numbers[1])));
      const lower = run.map(({ time, numbers }) => spot(scale.x(time), scale.y(numbers[0])));
      return `M${upper.join("L")}L${lower.reverse().join("L")}Z`;
    })
    .join("");
}

function nearest(points, time) {
  let best = null;
  for (const point of points) {
    if (best === null || Math.abs(point.time - time) < Math.abs(best.time - time)) best = point;
  }
  return best;
}
