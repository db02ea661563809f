// Creates elements and text nodes. The Trusted Types policy forbids parsing markup.

/** Create an element from "tag.class.class". Properties `on*` are listeners. */
export function h(selector, props, ...children) {
	const [tag, ...classes] = selector.split(".");
	const element = document.createElement(tag);
	if (classes.length) element.className = classes.join(" ");
	if (props?.constructor !== Object) children.unshift(props);
	else {
		for (const [name, value] of Object.entries(props)) {
			if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
			else if (name in element) element[name] = value;
			else element.setAttribute(name, value);
		}
	}
	// One by one, since a call has a limited number of arguments.
	for (const child of children.flat(2)) if ((child ?? false) !== false) element.append(child);
	return element;
}

export function svg(tag, attributes, ...children) {
	const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
	element.append(...children);
	return element;
}

export const pre = (text = "") => h("pre", { tabIndex: 0 }, text);

let lastId = 0;

export function field(label, control) {
	control.id ||= `f${++lastId}`;
	return h("div.field", h("label", { htmlFor: control.id }, label), control);
}

/** Create a select element. options: a name each, or [name, label]. */
export function select(options, value, onchange) {
	const control = h("select", { onchange: () => onchange?.(control.value) }, options.map((option) => {
		const [name, label = name] = [].concat(option);
		return h("option", { value: name, selected: name === value }, label);
	}));
	return control;
}

export const button = (label, onclick, props) => h("button", { type: "button", onclick, ...props }, label);
export const quiet = (label, onclick, props) => button(label, onclick, { className: "quiet", ...props });

/** A button that asks for a second click before it acts. */
export function sureButton(label, question, onclick) {
	const reset = () => {
		control.textContent = label;
		control.classList.remove("danger");
	};
	const control = quiet(label, () => {
		if (control.textContent === label) {
			control.textContent = question;
			control.classList.add("danger");
		} else {
			reset();
			onclick();
		}
	}, { onblur: reset });
	return control;
}

export const submitButton = (label) => h("button.primary", label);

export const form = (selector, onsubmit, ...children) => h(selector, {
	onsubmit: (event) => {
		event.preventDefault();
		onsubmit();
	},
}, ...children);

export function copyButton(read) {
	const control = quiet("Copy", async () => {
		const text = read();
		if (navigator.clipboard) await navigator.clipboard.writeText(text);
		else {
			// Browsers have this API only on loopback and over HTTPS.
			addEventListener("copy", (event) => {
				event.preventDefault();
				event.clipboardData.setData("text/plain", text);
			}, { once: true });
			document.execCommand("copy");
		}
		control.textContent = "Copied";
		setTimeout(() => (control.textContent = "Copy"), 1200);
	});
	return control;
}

export function seconds(value) {
	if ((value ?? null) === null) return "–";
	if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
	if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
	return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

export function count(value) {
	if (value === undefined) return "–";
	return value < 10_000 ? `${Math.round(value * 10) / 10}` : `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k`;
}

export const readProblem = (promise) => promise.then(() => "", ({ message }) => message);

export const total = (items, name) => items.reduce((all, item) => all + item[name], 0);

export const showWarnings = (warnings) => warnings.map((warning) => h("p.warning", warning));

export const toSpans = (facts) => facts.filter(Boolean).map((fact) => h("span", fact));

export const pretty = (value) => JSON.stringify(value, null, 2);

/** Parse JSON that a user typed: {value, problem}. An empty text has neither. */
export function parseJson(text, check) {
	try {
		const value = text.trim() ? JSON.parse(text) : undefined;
		return { value, problem: value === undefined ? "" : check?.(value) };
	} catch ({ message }) {
		return { problem: message };
	}
}

/** Create a text area for JSON, with its validity below. */
export function jsonEditor(label, text, onchange, check) {
	const state = h("small", { role: "status" });
	const area = h("textarea.code", { rows: 6, spellcheck: false, value: text, ariaLabel: label, oninput: () => validate() });
	const validate = () => {
		const { value, problem } = parseJson(area.value, check);
		area.setAttribute("aria-invalid", Boolean(problem));
		state.className = problem ? "bad" : "";
		state.textContent = problem || (value === undefined ? "" : "Valid.");
		onchange(area.value, problem);
	};
	validate();
	return { area, parts: [area, state], set: (next) => ((area.value = next), validate()) };
}

/** Call `update` in an animation frame, and after four times as long as the last call took:
 * what grows slow to draw is drawn less often. */
export function throttle(update) {
	let isPlanned = false;
	let earliest = 0;
	const draw = () => {
		isPlanned = false;
		const start = performance.now();
		update();
		const end = performance.now();
		earliest = end + 4 * (end - start);
	};
	return () => {
		if (isPlanned) return;
		isPlanned = true;
		setTimeout(() => requestAnimationFrame(draw), Math.max(0, earliest - performance.now()));
	};
}

/** Roving tabindex: arrow keys move the focus among `items()`, Tab reaches the current one. */
export function addRovingFocus(container, items, onfocus = () => {}) {
	container.addEventListener("keydown", (event) => {
		const list = items();
		const at = list.indexOf(document.activeElement);
		const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -at, End: list.length - 1 - at };
		if (at < 0 || !(event.key in steps)) return;
		event.preventDefault();
		const next = list[(at + steps[event.key] + list.length) % list.length];
		list[at].tabIndex = -1;
		next.tabIndex = 0;
		next.focus();
		onfocus(next);
	});
}
