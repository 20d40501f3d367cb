package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/hack/browser"
	"github.com/berthd/berth/hack/testing/kubeletnode"
	"github.com/berthd/berth/managers/cpuset"
)

// staticMemory are settings of a machine whose memory is allocated by node.
const staticMemory = `cgroups: {tree: memory}
reserved: {cpus: "0", system: {memory: 1Gi}, evictionHard: {}}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 1Gi}}]}
`

// reject sends a pod that does not fit, and returns the id of its admission.
func reject(t *testing.T, client *berth.Client, name, cpus string) (admission string) {
	t.Helper()
	pod, err := readText(podText(name, cpus))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Admission().Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}})
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
		t.Fatalf("%s: %v, %v", name, answer.GetVerdict(), err)
	}
	return answer.GetAdmissionId()
}

// admitMovable admits a pod that may move.
func admitMovable(t *testing.T, client *berth.Client, name, cpus string) {
	t.Helper()
	text := strings.Replace(podText(name, cpus), "uid:", `annotations: {"berthd.github.io/movable": anywhere}, uid:`, 1)
	pod, err := readText(text)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Admission().Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}})
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%s: %v, %v", name, answer.GetMessage(), err)
	}
}

// read is the visible text of an element.
func read(p *browser.Page, selector string) (text string) {
	p.Eval(fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ''`, selector), &text)
	return text
}

// on are the CPUs of the elements of a selector.
func on(p *browser.Page, selector string) cpuset.Set {
	var ids []int
	p.Eval(fmt.Sprintf(`[...document.querySelectorAll(%q)].map((r) => Number(r.dataset.cpu))`, selector), &ids)
	return cpuset.Of(ids...)
}

// TestWebVerdict: by keyboard alone from what needs attention to the verdict, its reasons in the words of explain, and what would help.
func TestWebVerdict(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	socket, client := daemonWith(t, "2s2n8c2t,mem=64Gi", staticMemory)
	for i := range 9 {
		admit(t, client, fmt.Sprintf("web-%d", i), []string{"2", "4", "6"}[i%3])
	}
	reject(t, client, "aligned", "24")
	id := reject(t, client, "large", "60")
	p.Load(serve(t, socket))
	p.Until(`document.querySelectorAll('#attention .items li').length === 2`)
	found, err := client.Inspect().GetTrace(t.Context(),
		&inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_AdmissionId{AdmissionId: id}})
	if err != nil {
		t.Fatal(err)
	}
	trace := found.GetTrace()
	if got := read(p, "#attention"); !strings.Contains(got, "default/large") || !strings.Contains(got, trace.GetMissing()[0]) {
		t.Errorf("what needs attention: %s", got)
	}
	shot(t, p, "now-attention")
	tabTo(t, p, `#attention a[href*="/aligned/"]`)
	p.Press("Enter")
	p.Until(`document.querySelector('.verdict .map')?.textContent.includes('cpu prefers nodes 2-3')`)
	shot(t, p, "verdict-aligned")
	tabTo(t, p, `header a[href="#/now"]`)
	p.Press("Enter")
	p.Until(`document.querySelector('#attention .items')`)
	tabTo(t, p, `#attention a[href*="/large/"]`)
	p.Press("Enter")
	p.Until(`document.querySelector('.verdict .map')`)
	var at string
	p.Eval(`location.hash`, &at)
	if want := "#/pods/default/large/verdicts/" + id; at != want {
		t.Errorf("the verdict is at %s, want %s", at, want)
	}
	got := read(p, ".verdict")
	parts, _ := sentences.Steps(trace, trace.GetSteps(), false)
	wants := slices.Concat(trace.GetMissing(), []string{trace.GetReason(), id, "(uid "})
	for _, s := range trace.GetSuggestions() {
		wants = append(append(wants, s.GetText()), s.GetHow()...)
	}
	for _, part := range parts {
		wants = append(append(wants, part.Owner), part.Steps...)
	}
	for _, want := range wants {
		if n := strings.Count(got, want); n == 0 {
			t.Errorf("the verdict does not say %q:\n%s", want, got)
		}
	}
	seen := map[string]bool{}
	var lines []string
	p.Eval(`[...document.querySelectorAll('.explanation li')].map((l) => l.innerText)`, &lines)
	for _, line := range lines {
		if seen[line] {
			t.Errorf("said twice: %s", line)
		}
		seen[line] = true
	}
	if len(trace.GetSuggestions()) > 0 {
		tabTo(t, p, ".copy")
		p.Press("Enter")
		p.Until(`['copied', 'selected'].includes(document.querySelector('.copy').textContent)`)
	}
	var short []string
	p.Eval(`[...document.querySelectorAll('.map .box.short')].map((b) => b.dataset.node)`, &short)
	if len(short) == 0 {
		t.Error("the map does not show what the pod needs")
	}
	shot(t, p, "page-verdict")

	tabTo(t, p, `header a[href="#/verdicts"]`)
	p.Press("Enter")
	p.Until(`document.querySelectorAll('td .badge').length === 11`)
	p.Press("/")
	p.Until(`document.activeElement.id === 'filter'`)
	p.Type("web-3")
	p.Until(`document.querySelectorAll('td .badge').length === 1 && location.hash.includes('pod=web-3')`)
	p.Press("Ctrl+a")
	p.Eval(`document.activeElement.select()`, nil)
	p.Type("d")
	tabTo(t, p, "#refused")
	p.Press(" ")
	p.Until(`location.hash.includes('refused=1') && document.querySelectorAll('td .badge').length === 2 && document.querySelector('td .bad')`)
	shot(t, p, "verdicts")
	noProblems(t, p)
}

// writePod replaces the text of the pod in the form, as a person does.
func writePod(t *testing.T, p *browser.Page, text string) {
	t.Helper()
	tabTo(t, p, "#pod")
	p.Eval(`document.activeElement.select()`, nil)
	p.Type(text)
	p.Press("Ctrl+Enter")
}

// TestWebWhatIf tries pods by keyboard alone: what berthd decides in a dry run is shown, and mistakes are marked at their line.
func TestWebWhatIf(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	socket, client := daemonWith(t, "2s2n8c2t,mem=64Gi", staticMemory)
	for i := range 9 {
		admit(t, client, fmt.Sprintf("web-%d", i), []string{"2", "4", "6"}[i%3])
	}
	p.Load(serve(t, socket))
	p.Until(`document.getElementById('main').dataset.view === 'now'`)
	tabTo(t, p, `header a[href="#/whatif/pod"]`)
	p.Press("Enter")
	p.Until(`document.getElementById('pod')`)
	for name, cpus := range map[string]string{"fits": "4", "large": "24"} {
		writePod(t, p, podText(name, cpus))
		p.Until(`document.getElementById('result').textContent.includes('default/` + name + `')`)
		pod, err := readText(podText(name, cpus))
		if err != nil {
			t.Fatal(err)
		}
		dry, err := client.Admission().Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod},
			DryRun: true, TraceLevel: admissionv1.TraceLevel_TRACE_LEVEL_FULL})
		if err != nil {
			t.Fatal(err)
		}
		got := read(p, "#result")
		wants := []string{strings.ToLower(strings.TrimPrefix(dry.GetVerdict().String(), "VERDICT_")), dry.GetReason()}
		for _, s := range dry.GetTrace().GetSuggestions() {
			wants = append(wants, s.GetText())
		}
		for _, want := range append(wants, dry.GetTrace().GetMissing()...) {
			if !strings.Contains(got, want) {
				t.Errorf("%s: the page does not say %q:\n%s", name, want, got)
			}
		}
		if admitted := dry.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED; admitted {
			var planned cpuset.Set
			for _, s := range dry.GetTrace().GetSteps() {
				planned = planned.Union(command.Set(s.GetClaim().GetCpu().GetCpus()))
			}
			if onMap := on(p, "#result .planned"); onMap != planned {
				t.Errorf("%s: the map has CPUs %s, the dry run %s", name, onMap, planned)
			}
		}
		shot(t, p, "whatif-"+name)
	}
	writePod(t, p, "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  nodename: y\n  containers:\n  - name: main\n    resources:\n      limits:\n        cpu: many\n")
	p.Until(`document.querySelector('.numbers .mistake')?.textContent === '● 10' && document.querySelector('.problems').textContent.includes('line 10: ')`)
	tabTo(t, p, ".problems button")
	p.Press("Enter")
	p.Until(`document.activeElement.id === 'pod' && document.activeElement.value.slice(document.activeElement.selectionStart, document.activeElement.selectionEnd) === '        cpu: many'`)
	shot(t, p, "whatif-mistake")
	writePod(t, p, strings.Replace(podText("odd", "2"), "spec: {", "spec: {nodename: y, ", 1))
	p.Until(`document.getElementById('result').textContent.includes('default/odd') && document.querySelector('.problems .ignored')?.textContent.includes('spec.nodename')`)

	tabTo(t, p, `.tabs a[href="#/whatif/policy"]`)
	p.Press("Enter")
	p.Until(`document.getElementById('topologyPolicy')`)
	tabTo(t, p, "#topologyPolicy")
	p.Press("s")
	p.Until(`document.getElementById('topologyPolicy').value === 'single-numa-node'`)
	tabTo(t, p, "#reservedCpus")
	p.Eval(`document.activeElement.select()`, nil)
	p.Type("0-1")
	tabTo(t, p, "#try")
	p.Press("Enter")
	p.Until(`document.getElementById('result').textContent.includes('If they came anew') && document.querySelectorAll('#result .map').length === 2`)
	tabTo(t, p, "#reservedCpus")
	p.Eval(`document.activeElement.select()`, nil)
	p.Type("0-44")
	tabTo(t, p, "#try")
	p.Press("Enter")
	p.Until(`document.getElementById('refused')?.textContent.includes('default/web-') && document.querySelector('#result tbody .bad')?.textContent === 'rejected'`)
	shot(t, p, "whatif-policy")

	tabTo(t, p, `.tabs a[href="#/whatif/resize"]`)
	p.Press("Enter")
	p.Until(`document.querySelector('[data-amount="cpu"]')`)
	tabTo(t, p, `[data-amount="cpu"]`)
	p.Eval(`document.activeElement.select()`, nil)
	p.Type("6")
	tabTo(t, p, "#try")
	p.Press("Enter")
	p.Until(`document.getElementById('verdict')`)
	if got := read(p, "#verdict"); !strings.Contains(got, "✓ admitted default/web-0") {
		t.Errorf("the resize: %s\n%s", got, read(p, "#result"))
	}
	if n := on(p, "#result .planned").Len(); n != 6 {
		t.Errorf("after the resize the pod has %d CPUs on the map", n)
	}
	shot(t, p, "whatif-resize")
	noProblems(t, p)
	if all, err := client.List(t.Context(), &allocationv1.ListRequest{}); err != nil || len(all.GetPods()) != 9 {
		t.Errorf("the trials have changed something: %v, %v", all, err)
	}
}

// TestWebDefrag: the plan of a defragmentation with its moves as arrows.
func TestWebDefrag(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	socket, client := daemonWith(t, "1s2n8c1t,mem=64Gi", staticMemory)
	for _, name := range []string{"a", "b", "c", "d"} {
		admitMovable(t, client, name, "3")
	}
	for _, name := range []string{"a", "d"} {
		if _, err := client.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: name}); err != nil {
			t.Fatal(err)
		}
	}
	p.Load(serve(t, socket))
	p.Until(`document.getElementById('main').dataset.view === 'now'`)
	tabTo(t, p, `header a[href="#/whatif/pod"]`)
	p.Press("Enter")
	p.Until(`document.querySelector('.tabs')`)
	tabTo(t, p, `.tabs a[href="#/whatif/defrag"]`)
	p.Press("Enter")
	p.Until(`document.getElementById('moves')`)
	writePod(t, p, podText("large", "8"))
	p.Until(`document.querySelector('#verdict, #failure')`)
	if got := read(p, "#result"); !strings.Contains(got, "✓ The pod fits after") {
		t.Fatalf("the plan: %s", got)
	}
	var arrows, maps int
	p.Eval(`document.querySelectorAll('#result .move').length`, &arrows)
	p.Eval(`document.querySelectorAll('#result .map').length`, &maps)
	if arrows == 0 || maps != 2 {
		t.Errorf("%d arrows on %d maps", arrows, maps)
	}
	var large int
	p.Eval(`document.querySelectorAll('#result .map[aria-label^="Map after"] .cell.planned[data-pod="large"]').length`, &large)
	if large != 8 {
		t.Errorf("the map after has %d CPUs of the pod, want 8", large)
	}
	if got := read(p, "#result"); !strings.Contains(got, "large would have the CPUs") {
		t.Errorf("the plan does not tell what the pod would have: %s", got)
	}
	shot(t, p, "page-whatif")
	writePod(t, p, podText("small", "3"))
	p.Until(`document.querySelector('#verdict')?.innerText.includes('no pod moves')`)
	p.Eval(`document.querySelectorAll('#result .map[aria-label^="Map after"] .cell.planned[data-pod="small"]').length`, &large)
	p.Eval(`document.querySelectorAll('#result .move').length`, &arrows)
	if large != 3 || arrows != 0 {
		t.Errorf("without moves, the map after has %d CPUs of the pod and %d arrows, want 3 and none", large, arrows)
	}
	noProblems(t, p)
}

// TestWebHistory: any stored state by its time, marked as the past.
func TestWebHistory(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	socket, client := daemon(t, "2s2n8c2t")
	var then uint64
	var held cpuset.Set
	for i := range 6 {
		admit(t, client, fmt.Sprintf("web-%d", i), "4")
		if i == 2 {
			all, err := client.List(t.Context(), &allocationv1.ListRequest{})
			if err != nil {
				t.Fatal(err)
			}
			then = all.GetRevision()
			for _, pod := range all.GetPods() {
				held = held.Union(command.OwnCPUs(pod))
			}
		}
	}
	p.Load(serve(t, socket))
	p.Until(`document.getElementById('main').dataset.view === 'now'`)
	tabTo(t, p, `header a[href="#/history"]`)
	p.Press("Enter")
	p.Until(`document.querySelector('.entries table')`)
	tabTo(t, p, fmt.Sprintf(`.entries a[href="#/history/%d"]`, then))
	p.Press("Enter")
	p.Until(`document.querySelector('#past .map') && document.querySelector('.banner').textContent.startsWith('The past')`)
	if got := on(p, "#past .cell.pod"); got != held {
		t.Errorf("the map of the past has CPUs %s, want %s", got, held)
	}
	shot(t, p, "history")
	tabTo(t, p, ".banner a")
	p.Press("Enter")
	p.Until(fmt.Sprintf(`!location.hash.endsWith('/%d') && document.querySelectorAll('#past .cell.pod').length === %d`, then, held.Len()-4))
	noProblems(t, p)
}

// addresses are those of all views that need no name.
var addresses = slices.Clip([]string{
	"#/now", "#/verdicts", "#/whatif/pod", "#/whatif/policy", "#/whatif/resize", "#/whatif/defrag", "#/history",
})

// TestWebNarrow: at 320 px there is a list in place of the map, and nothing is wider than the page.
func TestWebNarrow(t *testing.T) {
	p := browser.Open(t, 1000, 800)
	socket, client := daemon(t, "2s2n8c2t")
	for i := range 3 {
		admit(t, client, fmt.Sprintf("a-pod-with-quite-a-long-name-%d", i), "4")
	}
	id := reject(t, client, "large", "420")
	p.Resize(320, 700)
	p.Load(serve(t, socket))
	p.Until(`document.querySelector('.nodes section')`)
	all, err := client.List(t.Context(), &allocationv1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range all.GetPods() {
		got := read(p, fmt.Sprintf(`.nodes li[data-pod="%s"]`, pod.GetUid()))
		if want := "CPUs " + command.OwnCPUs(pod).String() + ": default/" + pod.GetName(); !strings.Contains(got, want) {
			t.Errorf("the list has %q, want %q", got, want)
		}
	}
	shot(t, p, "narrow")
	for _, at := range append(addresses, "#/pods/default/large/verdicts/"+id) {
		visit(p, at, strings.Split(at, "/")[1])
		var wide int
		p.Eval(`document.documentElement.scrollWidth`, &wide)
		if wide > 320 {
			t.Errorf("%s is %d px wide", at, wide)
		}
	}
	p.Resize(1000, 800)
	visit(p, "#/now", "now")
	p.Until(`document.querySelector('.map')`)
	noProblems(t, p)
}

// contrastOf is a script: texts whose contrast with what is behind them is below 4.5:1 (WCAG 2.1, 1.4.3).
const contrastOf = `(() => {
	const rgb = (text) => (text.match(/[0-9.]+/g) ?? [0, 0, 0]).map(Number);
	const light = (c) => {
		const [r, g, b] = c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const c = rgb(getComputedStyle(e).backgroundColor);
			if (c.length < 4 || c[3] > 0) return c;
		}
		return [255, 255, 255];
	};
	const bad = [];
	let n = 0;
	const check = (text, color, ground) => {
		n++;
		const [a, b] = [light(color), light(ground)].sort((x, y) => y - x);
		const c = (a + 0.05) / (b + 0.05);
		if (c < 4.5) bad.push(text.slice(0, 30) + ' ' + c.toFixed(1));
	};
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const e = walk.currentNode.parentElement;
		const text = walk.currentNode.textContent.trim();
		if (!text || !e.checkVisibility() || e.closest('noscript, script, option')) continue;
		const style = getComputedStyle(e);
		if (!(e instanceof SVGElement)) { check(text, rgb(style.color), behind(e)); continue; }
		let cell = e.previousElementSibling;
		while (cell && cell.matches('text')) cell = cell.previousElementSibling;
		const opacity = cell ? Number(getComputedStyle(cell).fillOpacity) : 1;
		const ground = behind(e.ownerSVGElement);
		const over = (c) => c.slice(0, 3).map((v, i) => v * opacity + ground[i] * (1 - opacity));
		const fill = e.matches('.letter, .number:not(.aside)') && cell ? getComputedStyle(cell).fill : 'none';
		check(text, rgb(style.fill), fill.startsWith('rgb') ? over(rgb(fill)) : ground);
	}
	return {n, bad};
})()`

// TestWebContrast: every text of every view has enough contrast, in both color schemes.
func TestWebContrast(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	socket, client := daemonWith(t, "2s2n8c2t,mem=64Gi", staticMemory)
	for i := range 30 {
		admit(t, client, fmt.Sprintf("web-%d", i), "2")
	}
	id := reject(t, client, "large", "24")
	p.Load(serve(t, socket))
	p.Until(`document.querySelector('#attention .items')`)
	for _, scheme := range []string{"light", "dark"} {
		p.Media("prefers-color-scheme", scheme)
		for _, at := range append(addresses, "#/now/pod/web-3", "#/pods/default/large/verdicts/"+id) {
			visit(p, at, strings.Split(at, "/")[1])
			var got struct {
				N   int
				Bad []string
			}
			p.Eval(contrastOf, &got)
			if len(got.Bad) > 0 || got.N < 10 {
				t.Errorf("%s, %s: of %d texts these have less contrast than 4.5:1: %q", scheme, at, got.N, got.Bad)
			}
		}
		visit(p, "#/now/pod/web-3", "now")
		shot(t, p, scheme)
	}
	noProblems(t, p)
}

// TestWebUnbroken: no name breaks inside a word.
func TestWebUnbroken(t *testing.T) {
	p := browser.Open(t, 1000, 800)
	socket, client := daemon(t, "2s2n8c2t")
	const long = "averyveryveryveryveryverylongwordinthenameofapod"
	admit(t, client, long, "2")
	p.Load(serve(t, socket))
	p.Until(`document.querySelector('#pods td a')`)
	for _, width := range []int{1000, 320} {
		p.Resize(width, 800)
		var lines int
		raw, err := json.Marshal(long)
		if err != nil {
			t.Fatal(err)
		}
		p.Eval(fmt.Sprintf(`(() => {
			const n = [...document.querySelectorAll('.name')].flatMap((e) => [...e.childNodes]).find((n) => n.textContent.includes(%s));
			const r = document.createRange();
			r.selectNodeContents(n);
			return r.getClientRects().length;
		})()`, raw), &lines)
		if lines != 1 {
			t.Errorf("at %d px the word has %d lines", width, lines)
		}
	}
}

// TestWebKubelet: on a kubelet's node, what it does not have is a sentence, and the rest works.
func TestWebKubelet(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	env := command.Env{In: strings.NewReader(rejectedPods), Observe: observed, Check: checked}
	p.Load(serveWith(t, env, "--kubelet="+kubeletnode.New(t), "--pods", "-"))
	p.Until(`document.querySelector('#attention ul, #attention p:not(.soft)')`)
	visit(p, "#/verdicts", "verdicts")
	tabTo(t, p, "td a")
	p.Press("Enter")
	p.Until(`document.querySelector('.verdict .map')`)
	p.Until(`document.querySelector('.verdict').innerText.includes('rejected: TopologyAffinityError')`)
	for kind, want := range map[string]string{"pod": "✓ admitted default/trial", "policy": "This is the policy in force.",
		"resize": "There is no pod.", "defrag": "The pod fits as things are"} {
		visit(p, "#/whatif/"+kind, "whatif")
		p.Until(`document.querySelector('.tabs [aria-current]')?.getAttribute('href') === '#/whatif/` + kind + `'`)
		p.Eval(`document.getElementById('try')?.click()`, nil)
		p.Until(`document.querySelector('.whatif').innerText.includes('` + want + `')`)
	}
	visit(p, "#/history", "history")
	p.Until(`document.querySelector('.history').innerText.includes('Nothing is recorded.')`)
	p.Eval(`location.hash = '#/history/1'`, nil)
	p.Until(`document.querySelector('.banner') && document.querySelector('#past .bad')?.textContent`)
	noProblems(t, p)
}

// TestWebDevices: the history of a device unfolds, and a device is a place, by keyboard.
func TestWebDevices(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	p.Load(serve(t, (&fake{streams: &streams{left: []watched{{commits: life()[:1]}}}}).start(t)))
	p.Until(`document.querySelector('#totals details') && document.querySelector('#attention .items')`)
	for _, want := range []string{"CPUs 8-9", "gpu-1", "its plugin is expected", "cpuset.cpus is 0-7, and should be 1-2",
		"kernel/panic is 0"} {
		if got := read(p, "#attention"); !strings.Contains(got, want) {
			t.Errorf("%q does not need attention: %s", want, got)
		}
	}
	tabTo(t, p, "#totals summary")
	p.Press("Enter")
	p.Until(`document.querySelector('#totals details').open`)
	tabTo(t, p, "#totals details a")
	p.Press("Enter")
	p.Until(`location.hash.startsWith('#/now/device/example.com%2Fgpu/') && document.querySelector('.map .device.at, .map .cell.at')`)
	p.Until(`document.getElementById('about').textContent.startsWith('example.com/gpu ') && document.querySelector('#totals details').open`)
	shot(t, p, "devices")
	noProblems(t, p)
}

// TestWebFold: on a large screen the first view has the map, what needs attention, and the first pods.
func TestWebFold(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	socket, client := daemon(t, "8s1n32c2t")
	for i := range 8 {
		admit(t, client, fmt.Sprint("p", i), "4")
	}
	p.Load(serve(t, socket))
	p.Until(`document.querySelectorAll('#pods tbody tr').length === 8`)
	var below float64
	p.Eval(`document.querySelectorAll('#pods tbody tr')[2].getBoundingClientRect().bottom - innerHeight`, &below)
	if below > 0 {
		t.Errorf("the third pod is %.0f pixels below the first view", below)
	}
	shot(t, p, "fold")
}
