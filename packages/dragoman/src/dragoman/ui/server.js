// The Server view: models, load, latencies, recent requests.

import { get, post, send } from "./api.js";
import { drawHistogram, drawLines, drawTable, parseMetrics, poll, readHistogram, sum, tile } from "./charts.js";
import { count, h, quiet, readProblem, seconds, showWarnings, total } from "./dom.js";
import { loadModels } from "./state.js";

const MAX_SAMPLES = 120;
const GAUGES = {
	generated: "generation_tokens_total",
	prompt: "prompt_tokens_total",
	cached: "prompt_tokens_cached_total",
	running: "num_requests_running",
	waiting: "num_requests_waiting",
};

export function createServer() {
	const [tiles, charts, models, requests] = ["tiles", "charts", "models", "requests"].map((name) => h(`div.${name}`));
	const problem = h("p.bad", { role: "status" });
	const history = [];
	let round = 0;

	function drawLoad(samples) {
		const point = { at: performance.now() / 1000 };
		for (const [name, metric] of Object.entries(GAUGES)) point[name] = sum(samples, metric);
		const last = history.at(-1) || point;
		const rate = (name) => Math.max(0, (point[name] - last[name]) / (point.at - last.at || 1));
		Object.assign(point, { generatedRate: rate("generated"), promptRate: rate("prompt") });
		history.push(point);
		if (history.length > MAX_SAMPLES) history.shift();
		const values = (name) => history.map((entry) => entry[name]);
		const cores = samples.get("kv_cache_usage_perc");
		const usage = cores && `${((100 * sum(samples, "kv_cache_usage_perc")) / cores.length).toFixed(1)} %`;
		tiles.replaceChildren(
			tile("Running", count(point.running)), tile("Waiting", count(point.waiting)),
			tile("Tokens/s", count(point.generatedRate), `${count(point.generated)} generated`),
			tile("Prompt tokens/s", count(point.promptRate), `${count(point.prompt)} read`),
			tile("KV cache", usage || "–", usage ? "in use" : "not reported"),
			tile("Prefix cache", point.prompt ? `${((100 * point.cached) / point.prompt).toFixed(0)} %` : "–", "of prompt tokens"));
		charts.replaceChildren(
			drawLines("Tokens per second", { generated: values("generatedRate"), prompt: values("promptRate") }, count),
			drawLines("Requests", { running: values("running"), waiting: values("waiting") }, count),
			drawHistogram("Time to first token", readHistogram(samples, "time_to_first_token_seconds")),
			drawHistogram("Inter-token latency", readHistogram(samples, "inter_token_latency_seconds")));
	}

	async function change(action, model) {
		problem.textContent = await readProblem(post(`/models/${action}`, { model }));
		await drawModels();
		loadModels();
	}

	async function drawModels() {
		const { data } = await get("/models", { quiet: true });
		const unit = (amount, divisor, name) => amount && `${(amount / divisor).toFixed(amount < 10 * divisor ? 1 : 0)} ${name}`;
		models.replaceChildren(drawTable("Models", ["Model", "State", "Context", "Parameters", "Size", h("span.hidden", "Action")], data.map(({ id, status, meta = {} }) => {
			const { value, failed, progress } = status;
			const sum = (name) => total(Object.values(progress), name);
			const state = failed ? "failed" : value;
			const action = value === "loaded" ? "unload" : "load";
			return [id, h(`span.state.${state}`, state, progress && ` ${((100 * sum("done")) / (sum("total") || 1)).toFixed(0)} %`),
				count(meta.n_ctx), unit(meta.n_params, 1e6, "M"), unit(meta.size, 1e6, "MB"),
				quiet(action === "load" ? "Load" : "Unload", () => change(action, id), { disabled: !["loaded", "unloaded"].includes(value) })];
		})));
	}

	async function drawRequests() {
		let data;
		try {
			({ data } = await get("/dragoman/requests", { quiet: true }));
		} catch (error) {
			requests.replaceChildren(h("p.note", `The last requests are not shown: ${error.message}`));
			return;
		}
		requests.replaceChildren(drawTable("Last requests", ["Time", "Route", "Model", "Status", "Prompt", "Output", "First token", "Total", "Warnings and errors"], data.slice(0, 50).map((line) => [
			new Date(line.arrival_s * 1000).toLocaleTimeString(), h("code", line.route), line.model,
			line.latency_s === null && line.error === null ? "running" : `${line.status}`,
			line.prompt_tokens && `${line.prompt_tokens}${line.cached_tokens ? ` (${line.cached_tokens} cached)` : ""}`,
			`${line.output_tokens}`, seconds(line.ttft_s), seconds(line.latency_s),
			h("div", line.error && h("span.bad", line.error), showWarnings(line.warnings))])));
	}

	const polling = poll(async () => {
		const response = await send("/metrics", { quiet: true });
		drawLoad(parseMetrics(await response.text()));
		// Models and requests change less often.
		if (round++ % 2 === 0) await Promise.all([drawModels(), drawRequests()]);
	});
	return { ...polling, element: h("div.view", polling.problem, tiles, charts, problem, models, requests), refresh: () => (round = 0) };
}
