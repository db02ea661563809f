// The Simulator view: the replicas of a simulated vLLM, its faults and the speed of its time.

import { get, send } from "./api.js";
import { drawLines, drawTable, poll, tile } from "./charts.js";
import { button, count, field, h, jsonEditor, pretty, quiet, seconds, select } from "./dom.js";

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
	const scale = h("input", { type: "number", min: 0.001, step: "any" });
	let isFaulty = false;

	const attempt = async (act) => {
		try {
			await act();
			problem.textContent = "";
		} catch (error) {
			problem.textContent = error.message;
		}
	};
	const put = (path, body) => attempt(async () => {
		await send(path, { method: "PUT", body });
		await update();
	});

	const setScale = (value) => put("/dragoman/simulator", { time_scale: Number(value) });
	const applyScale = (event) => {
		event.preventDefault();
		setScale(scale.value);
	};
	const speeds = h("form.row", { onsubmit: applyScale }, scale, h("button", { type: "submit" }, "Apply"), [1, 10, 100].map((value) => quiet(`×${value}`, () => setScale(value))));

	const example = Object.values(PRESETS)[0];
	const plan = jsonEditor("Fault plan, as JSON", localStorage.getItem(PLAN) || pretty(example), (text, bad) => bad || localStorage.setItem(PLAN, text), (value) => (Array.isArray(value) ? "" : "A plan is a list: [ ... ]"));
	const toggle = button("", () => attempt(() => put("/dragoman/faults", isFaulty ? [] : JSON.parse(plan.area.value))), { role: "switch" });
	const presets = select([["", "Choose an example"], ...Object.keys(PRESETS).map((name) => [name, name])], "", (name) => plan.set(pretty(PRESETS[name] || example)));

	async function update() {
		const [{ data: [simulation] }, faults, { ports: list }] = await Promise.all(["simulator", "faults", "listener"].map((name) => get(`/dragoman/${name}`, { quiet: true })));
		if (document.activeElement !== scale) scale.value = simulation.time_scale;
		const total = (name) => count(simulation.ranks.reduce((all, rank) => all + rank[name], 0));
		tiles.replaceChildren(
			tile("Replicas", `${simulation.ranks.length}`, simulation.model), tile("Running", total("running"), `of ${simulation.max_num_seqs} each`), tile("Waiting", total("waiting")),
			tile("KV blocks", total("used_blocks"), `of ${total("blocks")}, ${simulation.block_size} tokens each`), tile("Time", `×${simulation.time_scale}`, "of real time"));
		ranks.replaceChildren(...simulation.ranks.map((rank, at) => h("section.card",
			h("h2", `Replica ${at}`), h("p.meta", [`${rank.running} running`, `${rank.waiting} waiting`, `${count(rank.steps)} steps`].map((fact) => h("span", fact))),
			field(`${count(rank.used_blocks)} of ${count(rank.blocks)} blocks in use, ${count(rank.cached_blocks)} cached`, h("meter", { max: rank.blocks, value: rank.used_blocks })),
			drawLines("Step times", { last: rank.step_seconds }, seconds), drawLines("Tokens of a step", { last: rank.step_tokens }, count))));
		isFaulty = faults.length > 0;
		toggle.textContent = isFaulty ? "Faults are on" : "Faults are off";
		toggle.setAttribute("aria-checked", isFaulty);
		toggle.className = isFaulty ? "danger" : "";
		const link = ({ port }) => h("a", { href: Object.assign(new URL("ui#simulator", document.baseURI), { port }).href }, `${port}`);
		ports.replaceChildren(list.length > 1 ? drawTable("Instances of this process", ["Port", "State", "Planned changes"], list.map((one) => [link(one), one.state, `${one.planned}`])) : "");
	}

	return {
		element: h("div.view", tiles, problem,
			h("div.columns", h("section.card", h("h2", "Time scale"), speeds), h("section.card", h("h2", "Fault injection"), h("div.row", presets, toggle), plan.parts)),
			ranks, ports),
		...poll(() => attempt(update)),
	};
}
