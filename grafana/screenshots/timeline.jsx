// Stands in for Grafana's state timeline, which is not among its published components: a row per series.
function Timeline({ frames, w, h }) {
  const rows = frames.filter((frame) => frame.length);
  const left = 120;
  const high = Math.min(34, (h - 22) / Math.max(1, rows.length));
  const x = (time) => left + ((time - from) / (to - from)) * (w - left - 8);
  const ticks = Array.from({ length: 6 }, (_, i) => from + ((i + 0.5) * (to - from)) / 6);
  return (
    <svg width={w} height={h}>
      {rows.map((frame, at) => {
        const [times, values] = frame.fields.map((field) => field.values);
        const color = theme.visualization.getColorByName(frame.fields[1].config.color?.fixedColor || '#8D96A0');
        return (
          <g key={at}>
            <text x={left - 8} y={(at + 0.65) * high} fill="#ccccdc" fontSize="12" textAnchor="end">{frame.name}</text>
            {times.map((time, i) => values[i] > 0 && (
              <rect key={i} x={x(time)} y={at * high + 2} width={x(time + step * 1000) - x(time) + 0.6} height={high - 4} fill={color} />
            ))}
          </g>
        );
      })}
      {ticks.map((time) => (
        <text key={time} x={x(time)} y={h - 4} fill="#ccccdc" fontSize="12" textAnchor="middle">
          {new Date(time).toISOString().slice(11, 19)}
        </text>
      ))}
    </svg>
  );
}
