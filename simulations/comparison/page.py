"""The page of a comparison and the same as Markdown, jinja templates; modules for the reason given in `report_page`."""

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ summary.name }}: comparison</title>
<style>
{{ style }}
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
td.number, th.number { text-align: right; } td:last-child, th:last-child { padding-right: 0; }
tr.worse td { color: var(--bad); } tr.none td { color: var(--soft); }
.tag { display: inline-block; font-size: .78rem; border: 1px solid currentColor; border-radius: 4px; padding: 0 .35rem; margin-right: .35rem; }
tr.worse .tag { color: var(--bad); }
tr.first td { border-bottom: 0; padding-bottom: 0; } tr.terms td { padding-top: 0; line-height: 1.35; }
.promise li { margin: .5rem 0; } .promise details { font-size: .9rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 0 1.5rem; }
.charts figure { margin: .6rem 0; } .charts figure:only-child { max-width: 30rem; }
@media (max-width: 34rem) { .ranking th, .ranking td { padding-right: .4rem; font-size: .8rem; }
  td.range { white-space: normal !important; } td.range span { white-space: nowrap; } }
</style>
</head>
<body>
<h1>{{ summary.name }}</h1>
<p class="soft">{{ summary.labels | length }} strategies, {{ points | length }} setting{{ "s" if points | length > 1 }},
{{ summary.seeds | length }} seed{{ "s" if summary.seeds | length > 1 }}: {{ cells | shown }} runs
&middot; {% for one in asked %}{{ one.unit }} level, epsilon = {% for e in one.epsilon %}{{ e | shown }}{{ ", " if not loop.last }}{% endfor %},
delta = {% for d in one.delta %}{{ d | shown }}{{ ", " if not loop.last }}{% endfor %}{% endfor %}</p>
{% for line in together %}
<p class="soft together">{{ line }}.</p>
{% endfor %}

{% set line = overall[0] %}
<div class="verdict {{ 'good' if line.private and line.first else 'bad' }}">
<strong>{{ line.strategy if line.private and line.first else "No private strategy has a result" }}</strong>
{% if line.private and line.first %}Best private strategy in {{ line.first }} of {{ points | length }} setting{{ "s" if points | length > 1 }}{% if line.closed is not none %}; it goes {{ line.closed | percent }} of the way from the {{ zero }}
to training without privacy (median over settings){% endif %}.{% endif %}
{% if failed %} {{ failed }} of {{ cells }} runs gave no result; the reasons stand below.{% endif %}
</div>

<h2>Over all settings</h2>
<div class="scroll"><table class="ranking">
<thead><tr><th>strategy</th><th class="number">best in</th><th class="number">worse than nothing in</th><th class="number">way closed</th></tr></thead>
<tbody>
{% for line in overall %}
<tr class="{{ 'worse' if line.worse == points | length else '' if line.private else 'none' }}"><td>{{ line.strategy | replace("_", "_<wbr>" | safe) }}{% if line.oracle %} <span class="tag">{{ oracle }}</span>{% elif not line.private %} <span class="tag">no privacy</span>{% endif %}</td>
<td class="number">{{ line.first if line.private else "&ndash;" | safe }}</td><td class="number">{{ line.worse }}</td>
<td class="number">{{ "&ndash;" | safe if line.closed is none else line.closed | percent }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft">Of {{ points | length }}. Way closed: from the {{ zero }} (0&nbsp;%) to training without privacy (100&nbsp;%); below 0&nbsp;% is worse
than doing nothing.</p>
{% set stuck = points | selectattr("stuck") | list %}
{% if stuck %}
<p class="warning">Training without privacy did not get below the {{ zero }}, so no way is measured ({{ stuck | map(attribute="index") | join("; ") }}):
it did not converge, or held-out users have nothing to gain from these data.</p>
{% endif %}

{% if foresight %}
<p class="soft">Plans foresaw the order of the strategies, before any data were seen, with a rank correlation of {{ foresight.correlation | shown }}
(Spearman; 1 is the same order, 0 is none; mean over {{ foresight.points }} settings of up to {{ foresight.strategies }} strategies).</p>
{% endif %}

{% if charts %}
<h2>Plots</h2>
<p class="soft">Median over seeds, with minimum and maximum. On a logarithmic axis zero lies on the edge.
{% for reason in reasons %}Theory: {{ reason }}.{{ " " }}{% endfor %}</p>
<div class="charts">
{% for title, chart, _ in charts %}
<figure>{{ chart | safe }}
<figcaption>{{ title }}.</figcaption></figure>
{% endfor %}
</div>
{% endif %}

{% if courses %}
<h2>By round</h2>
<p class="soft">Median over seeds, with minimum and maximum, of the released model, from the initial model at round 0.
{% if not all_courses %}Of each problem the first and the last setting at the tightest budget; rounds.parquet has them all.{% endif %}</p>
<div class="charts">
{% for title, chart in courses %}
<figure>{{ chart | safe }}
<figcaption>{{ title }}.</figcaption></figure>
{% endfor %}
</div>
{% endif %}

<h2>Rankings</h2>
<p class="soft">By the median over seeds, smaller is better.{% for name, told in metrics %} {{ name | capitalize }}: {{ told }}.{% endfor %}{{ " " }}Measured without noise, next to training without privacy: exact, for the holder of the data alone; no guarantee covers it.
Every line says on what terms it stands.</p>
{% if points | selectattr("mixed") | list %}
<p class="warning">Relations differ. At the same epsilon, adding or removing one user is the weaker promise: what it means for
replacing one stands in the line.</p>
{% endif %}
{% for point in points %}
<h3>{{ point.index }}</h3>
<div class="scroll"><table class="ranking">
<thead><tr><th>strategy</th><th class="number">{{ point.metric }}</th><th class="number">min to max</th><th class="number">way closed</th></tr></thead>
<tbody>
{% for line in point.ranking %}
{% set look = 'worse' if line.worse else 'none' if line.median is none else '' %}
<tr class="{{ look }} first"><td>{{ line.strategy | replace("_", "_<wbr>" | safe) }}</td>
<td class="number">{{ line.median | shown(point.digits) if line.median is not none else "&ndash;" | safe }}</td>
<td class="number range">{% if line.median is not none %}<span>{{ line.low | shown }} to</span> <span>{{ line.high | shown }}</span>{% else %}&ndash;{% endif %}</td>
<td class="number">{{ "&ndash;" | safe if line.closed is none else line.closed | percent }}</td></tr>
<tr class="{{ look }} terms"><td colspan="4">
{% if line.worse %}<span class="tag">worse than doing nothing</span>{% endif %}
{% if line.oracle %}<span class="tag">{{ oracle }}</span>{% elif line.holds is sameas false %}<span class="tag">no privacy</span>{% endif %}
<small>{{ line.terms }}{% if line.failed %}{{ "; " if line.terms }}{{ line.failed }} of {{ line.failed + line.seeds }} failed: {{ line.reason }}{% endif %}</small></td></tr>
{% endfor %}
{% for name, value, way in point.references %}
<tr class="none"><td>{{ name }}</td><td class="number">{{ value | shown(point.digits) }}</td><td></td>
<td class="number">{{ "&ndash;" | safe if way is none else way | percent }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endfor %}

<h2>What each guarantee means</h2>
<p class="soft">All were calibrated to the same unit, epsilon and delta. The example is of the first setting.</p>
{% for one in guarantees %}
{% if one.promise is none %}
<p class="warning">Of these no run finished.</p>
{% else %}
<p{% if not one.holds %} class="warning"{% endif %}>{{ one.promise }}{% if one.holds %} <strong>From whom:</strong> {{ one.adversary }}.{% endif %}</p>
{% endif %}
<ul class="promise">
{% for strategy in one.strategies %}
<li><strong>{{ strategy.label }}</strong>{% if strategy.label != strategy.kind %} ({{ strategy.kind }}){% endif %}: {{ strategy.summary }}.
{% if strategy.replace_one %}<span class="warning">Its epsilon is about adding or leaving out one user. For replacing one, as the others count, it
is {{ strategy.replace_one }}.</span>{% endif %}
{% if strategy.group %}<span class="warning">It protects single samples, and a whole user only as a group of {{ strategy.group[0] | shown }}
samples: its noise had to be made for epsilon = {{ strategy.group[1] | shown_claim }} a sample.</span>{% endif %}
{% if strategy.assumptions %}<details><summary>It rests on</summary><ul>
{% for assumption in strategy.assumptions %}<li>{{ assumption }}</li>
{% endfor %}</ul></details>{% endif %}
</li>
{% endfor %}
</ul>
{% endfor %}

{% if summary.settings %}
<h2>Settings by problem</h2>
<p class="soft">Strategies were set by hand for each problem, in the file, before these runs; nothing pays for what was tried before.</p>
<div class="scroll"><table>
<thead><tr><th>problem</th><th>strategy</th><th>set</th></tr></thead><tbody>
{% for problem, strategy, chosen in summary.settings %}
<tr><td>{{ problem }}</td><td>{{ strategy }}</td><td>{% for k, v in chosen.items() %}{{ k }} = {{ v | shown }}{{ ", " if not loop.last }}{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}

{% if summary.tuning %}
<h2>Tuning</h2>
<p>Cost: <strong>{{ summary.tuning.cost }}</strong>. Each strategy's settings were chosen by the main metric on
{{ summary.tuning.repeats }} synthetic federation{{ "s" if summary.tuning.repeats > 1 }} of the same settings with seed {{ summary.tuning.public_seed }}{{ " and following" if summary.tuning.repeats > 1 }}, never on the data compared on.</p>
<details><summary>What was chosen</summary><div class="scroll"><table>
<thead><tr><th>problem</th><th>strategy</th><th>setting</th><th>chosen</th></tr></thead><tbody>
{% for problem, strategy, at, chosen in summary.tuning.chosen %}
<tr><td>{{ problem }}</td><td>{{ strategy }}</td><td>{% for k, v in at.items() %}{{ k }} = {{ v | shown }} {% endfor %}</td>
<td>{% for k, v in chosen.items() %}{{ k }} = {{ v | shown }}{{ ", " if not loop.last }}{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div></details>
{% endif %}

{% if summary.oracle_private %}
<h2>The oracle</h2>
<p class="warning">What begins with <strong>oracle-</strong> is {{ oracle | replace("oracle: ", "") }}. Every setting was run on the same data with
seed {{ summary.oracle_private.seed }}, and the one with the best held-out metric was taken: this reads the data once a setting, and no budget
pays for it. It stands here to show what tuning would be worth.</p>
<details><summary>What it chose</summary><div class="scroll"><table>
<thead><tr><th>problem</th><th>strategy</th><th>setting</th><th>chosen</th></tr></thead><tbody>
{% for problem, strategy, at, chosen in summary.oracle_private.chosen %}
<tr><td>{{ problem }}</td><td>{{ strategy }}</td><td>{% for k, v in at.items() %}{{ k }} = {{ v | shown }} {% endfor %}</td>
<td>{% for k, v in chosen.items() %}{{ k }} = {{ v | shown }}{{ ", " if not loop.last }}{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div></details>
{% endif %}

{% if errors %}
<h2>What failed</h2>
<ul>
{% for strategy, reason, count in errors %}
<li><strong>{{ strategy }}</strong>, {{ count }} run{{ "s" if count > 1 }}: {{ reason }}</li>
{% endfor %}
</ul>
{% endif %}

<h2>Do it again</h2>
<pre>userdp compare comparison.toml</pre>
<p>With the file below (comparison.toml of this directory); seed{{ "s" if summary.seeds | length > 1 }} {{ summary.seeds | join(", ") }}.
results.parquet has one row a run, rounds.parquet one a measured round. The runs took
{{ seconds | shown }} s in all. {% for name, number in summary.versions.items() %}{{ name }} {{ number }}{{ ", " if not loop.last }}{% endfor %}.</p>
<details><summary>comparison.toml</summary><pre>{{ config }}</pre></details>
</body>
</html>
"""

MARKDOWN = """\
# {{ summary.name }}

{{ summary.labels | length }} strategies, {{ points | length }} settings, {{ summary.seeds | length }} seeds: {{ cells }} runs, {{ failed }} without a result.
{% for one in asked %}
All calibrated to {{ one.unit }} level, epsilon = {{ one.epsilon | map("shown") | join(", ") }}, delta = {{ one.delta | map("shown") | join(", ") }}.
{% endfor %}
{% for line in together %}

{{ line }}.
{% endfor %}

## Over all settings

| strategy | best in | worse than doing nothing in | way closed |
|---|---|---|---|
{% for line in overall %}
| {{ line.strategy }}{{ " (" + oracle + ")" if line.oracle else "" if line.private else " (no privacy)" }} | {{ line.first if line.private else "-" }} | {{ line.worse }} | {{ "-" if line.closed is none else line.closed | percent }} |
{% endfor %}

Of {{ points | length }}. Way closed: from the {{ zero }} (0 %) to training without privacy (100 %).
{% set stuck = points | selectattr("stuck") | list %}
{% if stuck %}

Training without privacy did not get below the {{ zero }}, so no way is measured ({{ stuck | map(attribute="index") | join("; ") }}):
it did not converge, or held-out users have nothing to gain from these data.
{% endif %}
{% if foresight %}

Plans foresaw the order of the strategies, before any data were seen, with a rank correlation of {{ foresight.correlation | shown }}
(Spearman; 1 is the same order, 0 is none; mean over {{ foresight.points }} settings of up to {{ foresight.strategies }} strategies).
{% endif %}

## Rankings

By the median over seeds, smaller is better. Measured without noise, next to training without privacy: exact, for the holder of
the data alone; no guarantee covers it. The plots are in report.html.
{% if points | selectattr("mixed") | list %}

Relations differ. At the same epsilon, adding or removing one user is the weaker promise: what it means for replacing one
stands in the line.
{% endif %}
{% for point in points %}

### {{ point.index }}

| strategy | {{ point.metric }} | min to max | way closed | | on what terms |
|---|---|---|---|---|---|
{% for line in point.ranking %}
| {{ line.strategy }} | {{ line.median | shown(point.digits) if line.median is not none else "-" }} | {% if line.median is not none %}{{ line.low | shown }} to {{ line.high | shown }}{% else %}-{% endif %} | {{ "-" if line.closed is none else line.closed | percent }} | {{ "worse than doing nothing " if line.worse }}{{ oracle if line.oracle else "no privacy" if line.holds is sameas false }}{% if line.failed %} {{ line.failed }} failed{% endif %} | {{ line.terms }} |
{% endfor %}
{% for name, value, way in point.references %}
| *{{ name }}* | {{ value | shown(point.digits) }} | | {{ "-" if way is none else way | percent }} | | |
{% endfor %}
{% endfor %}

## What each guarantee means
{% for one in guarantees %}

{{ one.promise if one.promise else "Of these no run finished." }}{% if one.holds %} From whom: {{ one.adversary }}.{% endif %}


{% for strategy in one.strategies %}
- **{{ strategy.label }}** ({{ strategy.kind }}): {{ strategy.summary }}.{% if strategy.replace_one %} For replacing one user it is {{ strategy.replace_one }}.{% endif %}
{% if strategy.group %} It protects single samples, and a whole user only as a group of {{ strategy.group[0] | shown }}: epsilon = {{ strategy.group[1] | shown_claim }} a sample.{% endif %}

{% endfor %}
{% endfor %}
{% if summary.settings %}

## Settings by problem

Strategies were set by hand for each problem, in the file, before these runs; nothing pays for what was tried before.

| problem | strategy | set |
|---|---|---|
{% for problem, strategy, chosen in summary.settings %}
| {{ problem }} | {{ strategy }} | {% for k, v in chosen.items() %}{{ k }} = {{ v | shown }}{{ ", " if not loop.last }}{% endfor %} |
{% endfor %}
{% endif %}
{% if summary.tuning %}

## Tuning

Cost: {{ summary.tuning.cost }} (seed {{ summary.tuning.public_seed }}).

| problem | strategy | setting | chosen |
|---|---|---|---|
{% for problem, strategy, at, chosen in summary.tuning.chosen %}
| {{ problem }} | {{ strategy }} | {% for k, v in at.items() %}{{ k }} = {{ v | shown }} {% endfor %} | {% for k, v in chosen.items() %}{{ k }} = {{ v | shown }}{{ ", " if not loop.last }}{% endfor %} |
{% endfor %}
{% endif %}
{% if summary.oracle_private %}

## The oracle

What begins with oracle- is {{ oracle | replace("oracle: ", "") }}: every setting was run on the same data with seed {{ summary.oracle_private.seed }}, and the best was taken.

| problem | strategy | setting | chosen |
|---|---|---|---|
{% for problem, strategy, at, chosen in summary.oracle_private.chosen %}
| {{ problem }} | {{ strategy }} | {% for k, v in at.items() %}{{ k }} = {{ v | shown }} {% endfor %} | {% for k, v in chosen.items() %}{{ k }} = {{ v | shown }} {% endfor %} |
{% endfor %}
{% endif %}
{% if errors %}

## What failed

{% for strategy, reason, count in errors %}
- {{ strategy }}, {{ count }} runs: {{ reason }}
{% endfor %}
{% endif %}

## Do it again

`userdp compare comparison.toml`, with the file of this directory; seed{{ "s" if summary.seeds | length > 1 }} {{ summary.seeds | join(", ") }}. {% for name, number in summary.versions.items() %}{{ name }} {{ number }}{{ ", " if not loop.last }}{% endfor %}.
"""
