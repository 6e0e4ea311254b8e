"""The page of a report, a jinja template.

It is a module because Flower packs an app's Python files with it, and no HTML.
"""

STYLE = """\
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6575; --paper: #ffffff; --card: #f4f6f9; --line: #d9dee6;
  --good: #15803d; --bad: #b42318; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #a3adbd; --paper: #12161d; --card: #1b212b;
  --line: #313a49; --good: #4ade80; --bad: #ff8a80; --warn: #f0b429; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 46rem; padding: 1.2rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .5rem 0; }
.soft, figcaption, small { color: var(--soft); }
.verdict { border-left: 5px solid var(--line); background: var(--card); padding: .8rem 1rem; margin: 1.2rem 0;
  border-radius: 0 8px 8px 0; font-size: 1.08rem; }
.verdict.good { border-color: var(--good); } .verdict.bad { border-color: var(--bad); }
.verdict strong { display: block; }
.good strong { color: var(--good); } .bad strong { color: var(--bad); }
.warning { color: var(--warn); }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; display: block; max-width: 44rem; }
svg text { font-family: inherit !important; }
figcaption { font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th, td { text-align: left; padding: .38rem .7rem .38rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.list { white-space: normal; }
.classes td, .classes th { padding-right: .5rem; padding-left: .5rem; }
td.told { color: var(--soft); }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .88rem; }
pre { background: var(--card); padding: .8rem 1rem; border-radius: 8px; overflow-x: auto; }
ul { padding-left: 1.2rem; } li { margin: .25rem 0; }
summary { cursor: pointer; }
.private { border: 2px dashed var(--warn); border-radius: 8px; margin-top: 2.5rem; padding: 0 1rem 1rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
@media (max-width: 34rem) { .plan td.told { display: block; border: 0; padding-top: 0; }
  .plan tr { display: grid; grid-template-columns: 1fr auto; border-bottom: 1px solid var(--line); }
  .plan td, .plan th { border: 0; } .plan td.told { grid-column: 1 / -1; } .plan thead { display: none; } }
"""
"""Of every report: light or dark as the reader's system, down to the width of a phone."""

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ result.name }}: {{ result.strategy }}</title>
<style>
{{ style }}</style>
</head>
<body>
<h1>{{ result.name }}</h1>
<p class="soft">{{ result.strategy }} on the {{ result.problem }} problem &middot; {{ result.users | shown }} users,
{% if result.samples is not none %}
{{ result.samples | shown }} samples,
{% endif %}
{{ result.dimension | shown }} parameters &middot; {{ result.engine }} engine, seed {{ result.seed }}</p>

{% if verdict %}
<div class="verdict {{ verdict.kind }}">
<strong>{{ verdict.title }}</strong>
{{ verdict.told }}{% if about_constant %} <span class="soft">{{ about_constant }}</span>{% endif %}

</div>
{% endif %}
<div class="verdict {{ 'good' if guarantee.holds else 'bad' }}">
<strong>{% if guarantee.holds %}epsilon = {{ guarantee.epsilon | shown_claim }}, delta = {{ guarantee.delta | shown_claim }},
{{ guarantee.unit }} level{% else %}No privacy guarantee{% endif %}</strong>
{{ promise }}
</div>

<h2>The privacy guarantee</h2>
{% if not guarantee.holds %}
<p>{{ guarantee.sentence | capitalize }}.</p>
{% else %}
<ul>
<li><strong>Who is protected:</strong> {{ "every user, with all their samples" if guarantee.unit == "user"
  else "every single sample, not whole users" }}; neighbouring data sets differ by
{{ "replacing" if guarantee.relation == "replace_one" else "adding or removing" }} one of them.</li>
<li><strong>From whom:</strong> {{ guarantee.adversary }}.</li>
{% if guarantee.noise is defined %}
<li><strong>Noise:</strong> {{ guarantee.noise }}.</li>
{% endif %}
<li><strong>Accounting:</strong> {{ guarantee.accountant }}. The budget was epsilon = {{ requested.epsilon | shown }}.</li>
</ul>
<p>It rests on:</p>
<ul>
{% for assumption in guarantee.assumptions %}
<li>{{ assumption }}</li>
{% endfor %}
</ul>
{% endif %}

<h2>The course of the run</h2>
{% if course %}
<figure>{{ course | safe }}
<figcaption>Measured on the released model with held-out users. Simulation only, not covered by the
guarantee.</figcaption></figure>
{% else %}
<p class="soft">{{ result.rounds }} rounds were run; none is measured here.</p>
{% endif %}
{% if tests_failed %}
<p class="warning">{{ tests_failed }} test{{ "s" if tests_failed > 1 }} failed: the model stayed as it was.</p>
{% endif %}

{% if metrics %}
<h2>Metrics</h2>
{% for part in metrics %}
{% if not loop.first %}
<details><summary>{{ part | length }} more: spread over users, calibration, scaled units</summary>
{% endif %}
<div class="scroll"><table>
<thead><tr><th></th><th>this run</th>{% for name in references %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for name, values, told in part %}
<tr><td>{{ name }}<br><small>{{ told }}</small></td>
{% for value in values | shown_with_error(errors.get(name)) %}<td class="number">{{ value if value != "-" else "&ndash;" | safe }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if not loop.first %}
</details>
{% endif %}
{% endfor %}
<p class="soft">Averages over held-out users, each with the same weight: exact about them, and no guarantee covers them.
Simulation only.</p>
{% for kind, sentence in about_errors %}
<p class="{{ kind }}">{{ sentence }}</p>
{% endfor %}
{% endif %}

{% if confusion %}
<h2>Which classes are taken for which</h2>
<div class="scroll"><table class="classes">
<thead><tr><th>observed</th>{% for row in confusion %}<th>{{ row.name }}</th>{% endfor %}<th>found</th></tr></thead>
<tbody>
{% for row in confusion %}
<tr><th>{{ row.name }}</th>
{% for count, percent in row.cells %}<td class="number" style="background: color-mix(in srgb, var(--good) {{ percent }}%, transparent)">{{ count | shown }}</td>{% endfor %}
<td class="number">{% if row.found is not none %}{{ row.found }} %{% else %}&ndash;{% endif %}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft">Samples of held-out users: a row for each class that was observed, a column for each that the model told;
the darker, the more of the row. Simulation only, and not covered by the guarantee.</p>
{% endif %}

{% if pictures %}
<h2>Predictions against what was observed</h2>
{% for picture in pictures %}
<figure>{{ picture.chart | safe }}
<figcaption><strong>{{ picture.title }}.</strong> {{ picture.how_to_read }} Measured on held-out people: simulation only,
not covered by the guarantee.</figcaption></figure>
{% endfor %}
{% endif %}

<h2>The plan</h2>
<p class="soft">Fixed before any data were seen.</p>
{% for warning in plan.warnings %}
<p class="warning">&#9888; {{ warning }}</p>
{% endfor %}
<table class="plan">
<tbody>
{% for name, value, told in numbers %}
<tr><td>{{ name }}</td><td class="number{{ ' list' if value is string }}">{{ shown_number(name, value) if value is not none else "no limit" }}</td>
<td class="told">{{ told }}</td></tr>
{% endfor %}
</tbody></table>

<h2>The data</h2>
<ul>
<li>{{ data.training_users | default(result.users) | shown }} training users, {{ data.held_out_users | default(0) | shown }}
held out for metrics</li>
</ul>

<h2>Do it again</h2>
<pre>userdp run config.toml</pre>
<p>With the file below (config.toml of this directory); the seed is {{ result.seed }}.
{% if requested.noise == "secure" %}
Its noise was NOT drawn from that seed: the model will be another one, and the budget will be spent again.
{% endif %}
{% if result.seconds is defined %}
It took {{ result.seconds.total | shown }} s and {{ result.peak_memory_mib | shown }} MiB.
{% endif %}
{% if result.computed is defined and result.computed %}
The module's gradients were computed
{{ "for up to %d samples of several users at once" % result.computed.samples if result.computed.grouped else "one user after the other" }},
layers by {{ "userdp" if result.computed.own_layers else "torch" }}{{ ": the fastest way, as measured on made-up users" if result.computed.seconds_a_sample is defined }}.
{% endif %}
{% for name, number in result.versions.items() %}{{ name }} {{ number }}{{ ", " if not loop.last }}{% endfor %}.</p>
<details><summary>config.toml</summary><pre>{{ config }}</pre></details>
{% if private %}

<section class="private" id="figures_private">
<h2>Private figures</h2>
<p class="warning"><strong>Exact, from private data: for the holder of the data alone; not covered by the
guarantee.</strong> <code>userdp report DIR --released FOLDER</code> writes a copy that may be handed on, without this
section.</p>
{% for sentence in private.met_nowhere %}
<p class="warning">&#9888; {{ sentence }}</p>
{% endfor %}
<ul>
{% if private.samples is not none %}
<li>the training users hold {{ private.samples | shown }} samples</li>
{% endif %}
{% for sentence in private.cells %}
<li>{{ sentence }}</li>
{% endfor %}
<li>{{ private.bounded | shown }} samples had to be clipped by nodes into the problem's bounds
{%- if private.table %}, after loading{% endif %}</li>
<li>{{ private.missing | shown }} answers were missing and {{ private.non_finite | shown }} were not finite, over all
rounds</li>
{% if private.table %}
<li>the table has {{ private.table.rows | shown }} rows; {{ private.table.small_users | shown }} users were left out for few
samples, {{ private.table.surplus_samples | shown }} samples by the limit a user</li>
{% endif %}
</ul>
{% if private.metrics %}
<h3>Without privacy</h3>
{% if private.course %}
<figure>{{ private.course | safe }}
<figcaption>The course of the run, next to training without privacy on the same people.</figcaption></figure>
{% endif %}
<div class="scroll"><table>
<thead><tr><th></th><th>this run</th><th>without privacy</th></tr></thead>
<tbody>
{% for name, value, free in private.metrics %}
<tr><td>{{ name }}</td>
{% for one in (value, free) | shown_apart %}<td class="number">{{ one if one != "none" else "&ndash;" | safe }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% if private.clip %}
<h3>The clip</h3>
<div class="scroll"><table>
<thead><tr><th></th><th>first round</th><th>median</th><th>last round</th><th></th></tr></thead>
<tbody>
{% for name, values, told in private.clip %}
<tr><td>{{ name }}</td>{% for one in values %}<td class="number">{{ one | shown }}</td>{% endfor %}<td>{{ told }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% if private.score %}
<h3>How well users agree</h3>
<figure>{{ private.score | safe }}
<figcaption>The users of each round, before the test's noise. Not released.</figcaption></figure>
{% endif %}
</section>
{% endif %}
</body>
</html>
"""
