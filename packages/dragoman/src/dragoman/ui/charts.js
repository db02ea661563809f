// Parses Prometheus' text format, and draws charts of it as SVG.

import { h, readProblem, seconds, svg, total, toSpans } from "./dom.js";

/** Parse a scrape: its samples by name, without vLLM's prefix, as [{labels, value}]. */
export function parseMetrics(text) {
	const samples = new Map();
	for (const [, name, labels, value] of text.matchAll(/^(?:vllm:)?([\w:]+)(?:\{(.*)\})? (\S+)/gm)) {
		if (!samples.has(name)) samples.set(name, []);
		samples.get(name).push({ labels: labels || "", value: Number(value) });
	}
	return samples;
}

// Sums over all models.
export const sum = (samples, name) => total(samples.get(name) || [], "value");

/** Read a histogram: [{bound, count}], the counts not cumulative. */
export function readHistogram(samples, name) {
	const totals = new Map();
	for (const { labels, value } of samples.get(`${name}_bucket`) || []) {
		const bound = labels.match(/le="([^"]+)"/)[1].replace("+Inf", "Infinity");
		totals.set(bound, (totals.get(bound) || 0) + value);
	}
	return [...totals].map(([bound, upTo], at, all) => ({ bound: Number(bound), count: upTo - (all[at - 1]?.[1] ?? 0) }));
}

/** Compute a quantile, interpolated within its bucket as Prometheus does. */
function quantile(buckets, q) {
	let left = q * total(buckets, "count");
	let low = 0;
	for (const { bound, count } of buckets) {
		if (count && left <= count) return bound === Infinity ? low : low + ((bound - low) * left) / count;
		left -= count;
		low = bound;
	}
	return null;
}

const WIDTH = 480;
const HEIGHT = 100;
const draw = (title, facts, ...children) => h("figure.card", h("figcaption", h("strong", title), facts),
	svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 16}`, role: "img", "aria-label": `${title}: ${facts.map((fact) => fact.textContent).join(", ")}` }, ...children));

export function drawHistogram(title, buckets) {
	const start = Math.max(0, buckets.findIndex(({ count }) => count) - 1);
	const range = buckets.slice(start, Math.max(start + 8, buckets.findLastIndex(({ count }) => count) + 2));
	const most = Math.max(1, ...range.map(({ count }) => count));
	const width = WIDTH / range.length;
	const every = Math.ceil(range.length / 8);
	const bars = range.flatMap(({ bound, count }, at) => {
		const height = (count / most) * HEIGHT;
		const label = bound === Infinity ? "∞" : seconds(bound);
		const text = at % every ? [] : [svg("text", { x: (at + 1) * width - 2, y: HEIGHT + 13, "text-anchor": "end" }, label)];
		return [svg("rect", { x: at * width + 1, width: width - 2, y: HEIGHT - height, height, rx: 2 }, svg("title", {}, `up to ${label}: ${count}`)), ...text];
	});
	const facts = [...[0.5, 0.9, 0.99].map((q) => `p${q * 100} ${seconds(quantile(buckets, q))}`), `${total(buckets, "count")} samples`];
	return draw(title, toSpans(facts), ...bars);
}

/** series: {label: values} at the same points in time, at most 120. */
export function drawLines(title, series, format) {
	const entries = Object.entries(series);
	const most = Math.max(...entries.flatMap(([, values]) => values), 1e-6);
	const lines = entries.map(([, values], at) => svg("polyline", {
		class: `line${at}`,
		points: values.map((value, x) => `${(WIDTH * (x + 120 - values.length)) / 119},${HEIGHT - (value / most) * (HEIGHT - 4)}`).join(" "),
	}));
	const facts = entries.map(([label, values], at) => h(`span.key.line${at}`, `${label} ${format(values.at(-1) ?? 0)}`));
	return draw(title, [...facts, h("span", `peak ${format(most < 1e-5 ? 0 : most)}`)], svg("path", { d: `M0 ${HEIGHT}H${WIDTH}` }), ...lines);
}

export const tile = (label, value, note = "") => h("div.card.tile", h("small", label), h("strong", value), h("small", note));

// problem: the element that shows why it failed.
/** Call `update` every second while the view is shown, one call at a time. */
export function poll(update) {
	let run = 0;
	const problem = h("p.bad", { role: "status" });
	const loop = async (mine) => {
		if (!document.hidden) problem.textContent = await readProblem(update());
		if (mine === run) setTimeout(() => mine === run && loop(mine), 1000);
	};
	return { problem, show: () => loop(++run), hide: () => run++ };
}

export function drawTable(caption, heads, rows) {
	return h("div.scroll", { tabIndex: 0, role: "region", ariaLabel: caption }, h("table", h("caption", caption),
		h("thead", h("tr", heads.map((head) => h("th", { scope: "col" }, head)))),
		h("tbody", rows.map((cells) => h("tr", cells.map((cell) => h("td", cell ?? "–")))))));
}
