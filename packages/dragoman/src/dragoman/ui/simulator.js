// The Simulator view: replicas, fault injection, time scale.

import { get, send } from "./api.js";
import { drawLines, drawTable, poll, tile } from "./charts.js";
import { button, count, field, form, h, jsonEditor, pretty, quiet, readProblem, seconds, select, toSpans, total } from "./dom.js";

const PLAN = "dragoman.faults";
const PRESETS = {
	"Every tenth stream is cut": [{ every: 10, cut_after: 7 }],
	"5 % hang for five seconds": [{ probability: 0.05, hang: 5 }],
	"A fifth is rejected with 429": [{ probability: 0.2, status: 429 }],
	"The next request crashes the engine": [{ request: 1, crash: 10 }],
};

export function createSimulator() {
	const problem = h("p.bad", { role: "status" });
	const [tiles, ranks, ports] = ["tiles", "charts", "ports"].map((name) => h(`div.${name}`));
	const scale = h("input", { type: "number", min: 0.001, step: "any", ariaLabel: "Time scale" });
	let isFaulty = false;

	const put = async (name, readBody) => {
		await send(`/dragoman/${name}`, { method: "PUT", body: readBody() });
		await update();
	};
	const tryPut = async (name, readBody) => (problem.textContent = await readProblem(put(name, readBody)));
	const setScale = (value) => tryPut("simulator", () => ({ time_scale: Number(value) }));
	const speeds = form("form.row", () => setScale(scale.value), scale, h("button", "Apply"), [1, 10, 100].map((value) => quiet(`×${value}`, () => setScale(value))));

	const example = Object.values(PRESETS)[0];
	const plan = jsonEditor("Fault plan, as JSON", localStorage.getItem(PLAN) || pretty(example), (text, bad) => bad || localStorage.setItem(PLAN, text));
	const toggle = button("", () => tryPut("faults", () => (isFaulty ? [] : JSON.parse(plan.area.value))), { role: "switch" });
	const presets = select([["", "Choose an example"], ...Object.keys(PRESETS)], "", (name) => plan.set(pretty(PRESETS[name] || example)));
	presets.ariaLabel = "Examples of faults";

	async function update() {
		const [{ data: [simulation] }, faults, { ports: list }] = await Promise.all(["simulator", "faults", "listener"].map((name) => get(`/dragoman/${name}`, { quiet: true })));
		if (document.activeElement !== scale) scale.value = simulation.time_scale;
		const add = (name) => count(total(simulation.ranks, name));
		tiles.replaceChildren(
			tile("Replicas", `${simulation.ranks.length}`, simulation.model), tile("Running", add("running"), `of ${simulation.max_num_seqs} each`), tile("Waiting", add("waiting")),
			tile("KV blocks", add("used_blocks"), `of ${add("blocks")}, ${simulation.block_size} tokens each`), tile("Time", `×${simulation.time_scale}`, "of real time"));
		ranks.replaceChildren(...simulation.ranks.map((rank, at) => h("section.card",
			h("h2", `Replica ${at}`), h("p.meta", toSpans([`${rank.running} running`, `${rank.waiting} waiting`, `${count(rank.steps)} steps`])),
			field(`${count(rank.used_blocks)} of ${count(rank.blocks)} blocks in use, ${count(rank.cached_blocks)} cached`, h("meter", { max: rank.blocks, value: rank.used_blocks })),
			drawLines("Step times", { last: rank.step_seconds }, seconds), drawLines("Tokens of a step", { last: rank.step_tokens }, count))));
		isFaulty = faults.length > 0;
		toggle.textContent = isFaulty ? "Faults are on" : "Faults are off";
		toggle.setAttribute("aria-checked", isFaulty);
		toggle.className = isFaulty ? "danger" : "";
		const link = ({ port }) => h("a", { href: Object.assign(new URL("ui#simulator", document.baseURI), { port }).href }, `${port}`);
		ports.replaceChildren(list.length > 1 ? drawTable("Instances of this process", ["Port", "State", "Planned changes"], list.map((one) => [link(one), one.state, `${one.planned}`])) : "");
	}

	const polling = poll(update);
	return {
		element: h("div.view", polling.problem, tiles, problem,
			h("div.columns", h("section.card", h("h2", "Time scale"), speeds), h("section.card", h("h2", "Fault injection"), h("div.row", presets, toggle), plan.parts)),
			ranks, ports),
		...polling,
	};
}
