"""How the page looks, and the little that it does when a tensor is pointed at."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #ffffff; --raised: #f6f7f9; --text: #1c2330; --faint: #667085; --rule: #dfe3e8;
  --accent: #0b6bcb; --back: #c2410c; --input: #e3effc; --state: #fdeadb; --host: #f3e3fb; --plain: #f1f3f6;
  --result: #def3e4; --picked: #fff1b8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14181f; --raised: #1c222b; --text: #e4e8ee; --faint: #98a2b3; --rule: #323a46;
    --accent: #6cb2ff; --back: #fb923c; --input: #1d3552; --state: #4a2d17; --host: #3f2450; --plain: #272e39;
    --result: #1c3d2a; --picked: #5a4a12;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 2rem 4rem; max-width: 76rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid var(--rule); }
p { margin: .4rem 0; max-width: 60rem; }
code, pre, .graph, .chart { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code, pre { font-size: 12.5px; }
pre { overflow: auto; max-height: 40rem; padding: .8rem; background: var(--raised); border-radius: 6px; }
nav { margin-top: .8rem; }
nav a { margin-right: 1rem; color: var(--accent); text-decoration: none; }
.faint, .count, .line, .same { color: var(--faint); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .6rem; margin: 1rem 0; }
dl div { background: var(--raised); border-radius: 6px; padding: .5rem .75rem; }
dt { color: var(--faint); font-size: .8rem; }
dd { margin: 0; overflow-wrap: anywhere; }
.phases { display: flex; height: 14px; border-radius: 7px; overflow: hidden; background: var(--raised); }
.phases i { display: block; min-width: 1px; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; margin-top: .4rem; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 3px; margin-right: .4em; }
.c0 { background: #4e79a7; } .c1 { background: #f28e2b; } .c2 { background: #59a14f; } .c3 { background: #b07aa1; }
.c4 { background: #e15759; } .c5 { background: #76b7b2; }
.frame { overflow: auto; max-height: 90vh; border: 1px solid var(--rule); border-radius: 6px; }
.graph { display: block; margin: 0 auto; }
.graph text { text-anchor: middle; fill: var(--text); }
.graph .name { font-size: 12px; font-weight: 600; }
.graph .type { font-size: 10px; fill: var(--faint); }
.graph .index { font-size: 10px; fill: var(--accent); }
.arrow rect { fill: var(--ground); }
.graph .beside { text-anchor: start; }
.tensor rect { stroke: var(--faint); stroke-width: .8; fill: var(--plain); }
.input rect { fill: var(--input); } .recurrent rect { fill: var(--state); } .host rect { fill: var(--host); }
.result rect { fill: var(--result); }
.tensor { cursor: pointer; }
.arrow path { fill: none; stroke: var(--faint); stroke-width: 1.1; }
.shift path { stroke: var(--accent); }
.back path { stroke: var(--back); stroke-width: 1.6; stroke-dasharray: 5 3; }
.graph .back .index { fill: var(--back); }
#tip-here path { fill: var(--faint); } #tip-shift path { fill: var(--accent); } #tip-back path { fill: var(--back); }
.graph.pointed > g { opacity: .18; }
.graph.pointed > g.near { opacity: 1; }
.graph.pointed > g.self rect { stroke: var(--back); stroke-width: 2; }
.key { display: inline-block; padding: 0 .5em; border-radius: 4px; border: 1px solid var(--rule); font-size: .85rem; }
.key.input { background: var(--input); } .key.recurrent { background: var(--state); }
.key.host { background: var(--host); } .key.operation { background: var(--plain); }
.key.result { background: var(--result); border-radius: 1em; }
summary { cursor: pointer; }
.tree { border: 1px solid var(--rule); border-radius: 6px; padding: .5rem .75rem; overflow: auto; max-height: 90vh; }
.tree summary code { font-weight: 600; color: var(--accent); }
.tree .body { margin-left: .45rem; padding-left: 1.1rem; border-left: 1px solid var(--rule); }
.count { font-size: .8rem; margin-left: .8rem; }
.row { display: flex; gap: 1rem; border-radius: 4px; }
.row > code { flex: 1; min-width: 0; overflow-wrap: anywhere; }
.row > .line { flex: 0 0 min(29rem, 42vw); font: 12px/1.7 ui-monospace, Menlo, Consolas, monospace; white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; }
.row.picked { background: var(--picked); }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th { text-align: left; color: var(--faint); font-weight: 600; }
.stores th { cursor: pointer; }
.stores th.sorted::after { content: " ▾"; }
th, td { padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.bars { width: 22%; }
.bar { height: .8em; margin-top: .3em; min-width: 1px; border-radius: 3px; background: var(--accent); }
.chart { width: 100%; height: auto; }
.chart text { font-size: 10.5px; fill: var(--faint); }
.chart .tick { text-anchor: end; }
.grid { stroke: var(--rule); }
.taken { fill: var(--accent); fill-opacity: .25; stroke: var(--accent); stroke-width: 1.2; }
.peak { stroke: var(--back); stroke-dasharray: 5 4; }
.band rect { fill: var(--plain); stroke: var(--rule); }
.band text { fill: var(--text); }
.moment { fill: transparent; }
.moment:hover { fill: var(--accent); fill-opacity: .2; }
""".strip()

# A tensor that is pointed at, or clicked to stay, is shown with its neighbours and with the statements that compute it.
# Tables are sorted by the column that is clicked.
SCRIPT = """
const graph = document.querySelector(".graph");
const all = selector => [...document.querySelectorAll(selector)];
const frame = document.querySelector(".frame");
frame.scrollLeft = (frame.scrollWidth - frame.clientWidth) / 2;
let kept = null;
function point(tensor) {
  all(".near, .self, .picked").forEach(e => e.classList.remove("near", "self", "picked"));
  graph.classList.toggle("pointed", tensor !== null);
  if (tensor === null) return;
  const n = tensor.dataset.n;
  tensor.classList.add("near", "self");
  all(`.arrow[data-from="${n}"], .arrow[data-to="${n}"]`).forEach(arrow => {
    arrow.classList.add("near");
    for (const m of [arrow.dataset.from, arrow.dataset.to])
      all(`.tensor[data-n="${m}"]`).forEach(e => e.classList.add("near"));
  });
  if (tensor.dataset.k) all(`.row[data-k="${tensor.dataset.k}"]`).forEach(e => e.classList.add("picked"));
}
all(".tensor").forEach(tensor => {
  tensor.addEventListener("mouseenter", () => kept || point(tensor));
  tensor.addEventListener("mouseleave", () => kept || point(null));
  tensor.addEventListener("click", () => {
    kept = kept === tensor ? null : tensor;
    point(kept);
    const row = document.querySelector(".row.picked");
    const tree = document.querySelector(".tree");
    if (row) tree.scrollTop += row.getBoundingClientRect().top - tree.getBoundingClientRect().top - 60;
  });
});
all(".stores th").forEach(head => head.addEventListener("click", () => {
  const table = head.closest("table"), n = head.cellIndex;
  const text = row => row.cells[n].textContent, number = row => Number(text(row).replaceAll(",", ""));
  const compare = head.classList.contains("number")
    ? (a, b) => number(b) - number(a) : (a, b) => text(a).localeCompare(text(b));
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  [...table.tHead.rows[0].cells].forEach(cell => cell.classList.toggle("sorted", cell === head));
}));
""".strip()
