"""The page of an audit, a jinja template; a module for the reason given in `simulations.reports.report_page`."""

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }}: audit</title>
<style>
{{ style }}</style>
</head>
<body>
<h1>{{ name }}: privacy claims under attack</h1>
<p class="soft">An attacker who knows everybody else's data guesses, from what is released, what one {{ unit }} holds.
What is guessed too well for the epsilon that a strategy claims refutes the claim. What is not proves nothing, but a
measured epsilon close to the claimed one says that the attack would have seen a mistake.</p>

<div class="verdict {{ 'bad' if refuted else 'good' }}">
<strong>{% if refuted %}Refuted: {{ refuted | join(", ") }}{% elif not audits %}Nothing could be audited{% elif not several %}The
claim stands{% else %}{{ audits | length }} claims, none refuted{% endif %}</strong>
{% if not several %}
{% set one = audits[0] %}
Claimed: epsilon = {{ one.claimed_epsilon | shown }}. Measured: at least {{ one.measured_epsilon | shown }}, with confidence
{{ one.confidence | chance }}. Both at delta = {{ one.delta | shown }}.
{% elif refuted %}
At the confidence of the table, more was measured than is claimed: there is a mistake in the strategy, or in its proof.
{% elif audits %}
No more was measured than is claimed.
{% endif %}
</div>

{% if audits %}
<h2>Claimed and measured</h2>
<div class="scroll"><table>
<thead><tr><th>strategy</th><th>delta</th><th>claimed epsilon</th><th>measured, at least</th><th>share</th><th>confidence</th>
<th></th></tr></thead>
<tbody>
{% for one in audits %}
<tr><td>{{ one.strategy }}</td><td class="number">{{ one.delta | shown }}</td>
<td class="number">{{ one.claimed_epsilon | shown }}</td><td class="number">{{ one.measured_epsilon | shown }}</td>
<td class="number">{{ one.proved_share | percent }}</td><td class="number">{{ one.confidence | chance }}</td>
<td class="{{ 'bad' if one.refuted else 'good' }}"><strong>{{ "refuted" if one.refuted else "stands" }}</strong></td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft">If a claim holds, what is measured exceeds it with a probability of at most one less the confidence{{
"; the confidences are such that all lines together hold with the confidence that was asked for" if several }}.</p>
{% endif %}
{% if refusals %}
<h2>Not audited</h2>
<ul>
{% for one in refusals %}
<li><strong>{{ one.strategy }}:</strong> {{ one.refused }}</li>
{% endfor %}
</ul>
{% endif %}
{% for one in audits %}

{% if several %}
<details><summary><strong>{{ one.strategy }}</strong></summary>
{% endif %}
<h2>{{ "What the claim leaves an attacker" if not several else one.strategy }}</h2>
<figure>{{ one.chart | safe }}
<figcaption>The two errors of an attacker who tells two data sets apart that differ in one {{ one.unit }}: false positives
are alarms where the canary is not what is guessed, false negatives are canaries that are missed. No attack reaches into the
shaded area, if the claim holds. Dashed: the strongest claim of the same kind that the guesses do not refute.
{% if one.points %}
Points are shares in the {{ one.tested | shown }} runs of the test; those of few alarms or few misses scatter.
{% endif %}</figcaption></figure>
<div class="scroll"><table>
<thead><tr><th>attack</th><th>without the output</th><th>most by the claim</th><th>strongest claim not refuted</th></tr></thead>
<tbody>
{% for attack, blind, most, left in one.success %}
<tr><td>{{ attack }}</td>{% for value in (blind, most, left) %}<td class="number">{{ value | chance }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
<p>In the runs of the test {{ one.correct | shown }} of {{ one.guesses | shown }} guesses were right, {{ one.right | chance }}.
{% if one.claimed_mu is not none %}
The claim is that of one Gaussian mechanism, mu = {{ one.claimed_mu | shown }}, and was tested as such: measured is mu of at
least {{ one.measured_mu | shown }}. It allows an attacker less than its epsilon alone.
{% endif %}
{% if one.exact_epsilon is not none %}
A round begins with one of finitely many outcomes, a test or a choice, whose probabilities are known: of the worst of the
canaries tried it alone costs epsilon = {{ one.exact_epsilon | shown }}, exactly, whatever the runs show.
{% endif %}</p>

<h3>The attack</h3>
<ul>
<li><strong>Canaries:</strong> {{ one.attack }}; {{ one.canaries | shown }} in each run, thrown in by fair coins.</li>
<li><strong>Runs:</strong> {{ one.runs | shown }}{% if one.rounds %} of {{ one.rounds | shown }} round{{ "s" if one.rounds > 1 }}{% endif %},
for {{ one.users | shown }} users{{ "; a quarter of them taught the attacker how to guess, and the others were guessed" if one.runs > 1 }}.
{{ "Its users are the file's own." if one.bound == "one run" else "All data are made up." }}</li>
</ul>

<h3>The claim</h3>
<p>{{ one.guarantee }}.</p>
<p>It rests on:</p>
<ul>
{% for assumption in one.assumptions %}
<li>{{ assumption }}</li>
{% endfor %}
</ul>
{% if several %}
</details>
{% endif %}
{% endfor %}

<h2>Do it again</h2>
<pre>{{ command }}</pre>
<p>With the file below (config.toml of this directory); the seed is {{ seed }}.
{% for name, number in versions.items() %}{{ name }} {{ number }}{{ ", " if not loop.last }}{% endfor %}.</p>
<details><summary>config.toml</summary><pre>{{ config }}</pre></details>
</body>
</html>
"""
