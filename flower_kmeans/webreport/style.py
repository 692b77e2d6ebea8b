"""The page's style: light and dark, for screens of any width, and for paper."""

STYLE = """
:root{color-scheme:light dark;--paper:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#566274;
--line:#d9dee6;--accent:#2458b8;--noisy:#2458b8;--noisy-bg:#e3ecfb;--masked:#0f766e;
--masked-bg:#dcf3ef;--exact:#b42318;--exact-bg:#fde7e4;--part:#8a5a00;--part-bg:#fdf0d5;
--second:#9333a8}
@media (prefers-color-scheme:dark){:root{--paper:#12161d;--card:#1b212b;--ink:#e6eaf1;
--soft:#a2adbd;--line:#343d4b;--accent:#7fa8f5;--noisy:#7fa8f5;--noisy-bg:#20304d;
--masked:#4fc3b5;--masked-bg:#163632;--exact:#ff8f83;--exact-bg:#47211e;--part:#f0bd5e;
--part-bg:#3d2f12;--second:#d58ae6}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
overflow-wrap:anywhere}
main,header,footer{max-width:1080px;margin:0 auto;padding:0 16px}
header{padding-top:32px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px}
h2{font-size:1.2rem;line-height:1.3;margin:0 0 10px}
p{margin:0 0 10px;max-width:46em}
header p{color:var(--soft)}
footer{color:var(--soft);font-size:.85rem;padding-bottom:32px}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.9rem;margin:12px 0 4px}
a{color:var(--accent)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:20px;margin:16px 0;min-width:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,155px),1fr));gap:10px;
margin:16px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px;
min-width:0}
.tile span{display:block;color:var(--soft);font-size:.8rem}
.tile strong{font-size:1.1rem;line-height:1.3}
.tile.bad{border-color:var(--exact);background:var(--exact-bg);grid-column:1/-1}
.tile.bad strong{color:var(--exact)}
.warnings{list-style:none;margin:0;padding:0;display:grid;gap:8px}
.warnings li{border-left:4px solid var(--part);background:var(--part-bg);padding:8px 12px;
border-radius:0 6px 6px 0}
.warnings .bad{border-color:var(--exact);background:var(--exact-bg)}
.warnings .fact{border-color:var(--accent);background:var(--noisy-bg)}
.warnings strong{display:block;font-size:.85rem;color:var(--part)}
.warnings .bad strong{color:var(--exact)}
p.bad{color:var(--exact);font-weight:600}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));
gap:20px;align-items:start}
.pair>*,figure{min-width:0}
figure{margin:0 0 12px}
figcaption{color:var(--soft);font-size:.85rem;margin-top:6px}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px}
.legend span{display:inline-flex;align-items:center;gap:6px}
.key{display:inline-block;width:14px;height:14px;border-radius:3px;flex:none;
border:1.5px solid var(--line)}
.key.masked{background:var(--masked-bg);border-color:var(--masked)}
.key.noisy{background:var(--noisy-bg);border-color:var(--noisy)}
.key.exact{background:var(--exact-bg);border-color:var(--exact)}
.key.answered{background:var(--accent);border-color:var(--accent)}
.key.missed{background:var(--exact-bg);border-color:var(--exact);border-style:dashed}
.key.limit,.key.line-1,.key.line-2{height:0;border-width:2px 0 0;border-radius:0;
border-color:var(--accent)}
.key.limit{border-style:dashed;border-color:var(--ink)}
.key.line-2{border-color:var(--second);border-style:dashed}
.scroll{overflow:auto;max-height:46rem;max-width:100%;margin:0 0 12px;position:relative}
.scroll:focus-visible{outline:2px solid var(--accent)}
table{border-collapse:collapse;overflow-wrap:break-word;font-size:.9rem;font-variant-numeric:tabular-nums;
min-width:min(100%,16rem)}
.wide{width:100%}.wide th,.wide td{white-space:nowrap}
.parts{display:flex;gap:24px}.parts table{flex:none}.parts .wide{width:auto}
caption{text-align:left;color:var(--soft);font-size:.85rem;padding-bottom:6px}
th,td{padding:5px 18px 5px 0;text-align:left;vertical-align:top;
border-bottom:1px solid var(--line)}
th:last-child,td:last-child{padding-right:2px}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom;position:sticky;top:0;
background:var(--card)}
tbody th{font-weight:500}
tfoot th,tfoot td{font-weight:600;border-bottom:0}
.num{text-align:right;white-space:nowrap}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,220px),1fr));
gap:8px 20px;margin:0}
.facts dt{color:var(--soft);font-size:.8rem}
.facts dd{margin:0}
.badge{display:inline-block;border-radius:5px;padding:0 8px;font-weight:600;font-size:.85rem}
.badge.yes{background:var(--masked-bg);color:var(--masked)}
.badge.part{background:var(--part-bg);color:var(--part)}
.badge.no{background:var(--exact-bg);color:var(--exact)}
.swatch{display:inline-block;width:28px;height:14px;border-radius:3px;vertical-align:-2px;
border:1px solid var(--line)}
.palette{display:flex;height:44px;border-radius:6px;overflow:hidden;margin:0 0 12px;
border:1px solid var(--line)}
.palette span{flex-basis:0}
.track{display:inline-block;width:64px;height:8px;border-radius:4px;background:var(--line);
margin-right:8px;overflow:hidden;vertical-align:1px;text-align:left}
.bar{display:block;height:100%;background:var(--accent)}
.statements li{margin-bottom:6px;max-width:46em}
svg{display:block;width:100%;height:auto}
svg .label{font-size:12px;fill:var(--soft)}
svg .head,svg .strong{font-weight:600;fill:var(--ink)}
svg .words,svg .dot-name{fill:var(--ink)}
svg .dot-name{font-size:10px;paint-order:stroke;stroke:var(--card);stroke-width:2.5px}
svg .grid{stroke:var(--line);stroke-width:1;fill:none}
svg .axis{stroke:var(--soft);stroke-width:1.2;fill:none}
svg .curve{fill:none;stroke:var(--accent);stroke-width:2.2;stroke-linejoin:round}
svg .line-2{stroke:var(--second);stroke-dasharray:6 4}
svg .guide{fill:none;stroke:var(--soft);stroke-dasharray:3 3}
svg .at{fill:var(--card);stroke:var(--accent);stroke-width:2.5}
svg .a{fill:var(--accent)}
svg .m{fill:var(--exact-bg);stroke:var(--exact);stroke-dasharray:3 2}
svg .limit{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:6 4;fill:none}
svg .dot{fill:var(--accent);fill-opacity:.75;stroke:var(--card);stroke-width:1}
svg .dot[style]{fill-opacity:1;stroke:var(--soft)}
svg .party{fill:var(--card);stroke:var(--soft);stroke-width:1.3}
svg .record{stroke:var(--soft);stroke-width:2.5;stroke-linecap:round}
svg .box,svg .pill{stroke-width:1.3}
svg .masked{stroke:var(--masked);fill:var(--masked-bg)}
svg .noisy{stroke:var(--noisy);fill:var(--noisy-bg)}
svg .exact{stroke:var(--exact);fill:var(--exact-bg)}
svg .flow{fill:none;stroke-width:2}
svg .head-of.masked{fill:var(--masked)}
svg .head-of.noisy{fill:var(--noisy)}
svg .head-of.exact{fill:var(--exact)}
@media (max-width:520px){body{font-size:15px}section{padding:14px;border-radius:8px}
h1{font-size:1.35rem}}
@media print{:root{color-scheme:light;--paper:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;
--accent:#1d4796;--noisy:#1d4796;--noisy-bg:#e8eefb;--masked:#0b5c55;--masked-bg:#e3f3f0;--exact:#9c1c12;
--exact-bg:#fdeae7;--part:#6f4800;--part-bg:#fdf3dd;--second:#7a2a8c}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{font-size:10.5pt}main,header,footer{max-width:none;padding:0}header{padding-top:0}
p,.statements li{max-width:none}p{margin-bottom:6pt}nav{display:none}
section{border:0;padding:0;margin:14pt 0}
.tiles{grid-template-columns:repeat(6,auto);gap:6px}.tile{padding:6px 10px}
.warnings li{padding:5px 10px}
h2,caption,.tiles,.warnings li,.facts div,figure,tr{break-inside:avoid}
h2,caption{break-after:avoid}
.pair{grid-template-columns:3fr 2fr}#rounds .pair{grid-template-columns:5fr 6fr}
.facts{grid-template-columns:repeat(4,1fr)}.pair .scroll,#centroids figure{break-inside:avoid}
#centroids figure{max-width:75%}
.scroll{overflow:visible;max-height:none}.parts{display:block}.parts table{margin-bottom:12pt}
.parts .wide{width:100%}thead th{position:static}tfoot{display:table-row-group}
table{font-size:8.5pt}th,td{padding:3px 8px 3px 0}
.wide th,.wide tfoot td{white-space:normal;overflow-wrap:anywhere}}
"""
