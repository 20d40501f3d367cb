package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/hack/browser"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
)

const markup = `<img src=x onerror="window.pwned=1">'"><script>window.pwned=1</script>`

// TestWebHostile shows every view of a berthd in whose answers every text is markup.
func TestWebHostile(t *testing.T) {
	f := &fake{streams: &streams{left: []watched{{commits: life()[:1]}}}}
	kept := []string{"0,3-7", "0", "1-2", "0-7", "ADMISSION1", "ADMISSION9"}
	f.twist = func(r grpc.ServiceRegistrar) grpc.ServiceRegistrar { return twisted{r, kept, markup} }
	link := serve(t, f.start(t))
	p := browser.Open(t, 1200, 900)
	p.Load(link)
	p.Until(`document.getElementById('main').dataset.view === 'now' && document.body.innerText.includes('onerror')`)
	inert := func(what string) {
		t.Helper()
		var elements int
		p.Eval(`document.querySelectorAll('img, main script, iframe').length + (window.pwned ? 100 : 0)`, &elements)
		if elements != 0 {
			t.Errorf("%s: names became markup", what)
		}
	}
	inert("now")
	p.Eval(`location.hash = document.querySelector('#pods td a').getAttribute('href')`, nil)
	p.Until(`document.getElementById('about').textContent.includes('onerror')`)
	inert("a selected pod")
	visit(p, "#/verdicts", "verdicts")
	inert("verdicts")
	p.Eval(`location.hash = '#/pods/a/b/verdicts/ADMISSION1'`, nil)
	p.Until(`document.querySelector('.explanation')?.textContent.includes('onerror')`)
	inert("a verdict")
	for _, kind := range []string{"pod", "policy", "resize", "defrag"} {
		visit(p, "#/whatif/"+kind, "whatif")
		p.Until(`document.querySelector('.tabs [aria-current]')?.getAttribute('href') === '#/whatif/` + kind + `'`)
		p.Eval(`for (const a of document.querySelectorAll('.fields input')) a.value = '3'; { const a = document.getElementById('pod'); if (a) a.value = a.value.replace('trial', 'big'); } document.getElementById('try')?.click()`, nil)
		p.Until(`!document.getElementById('result') || !document.querySelector('#result > h3, #result[aria-busy]')`)
		inert("what if " + kind)
	}
	visit(p, "#/history", "history")
	inert("history")
	noProblems(t, p)
}

// visit goes to an address, and waits until its view is there.
func visit(p *browser.Page, address, view string) {
	p.Eval(`location.hash = '`+address+`'`, nil)
	p.Until(`document.getElementById('main').dataset.view === '` + view + `'`)
}

// noProblems checks that the browser has found nothing wrong, and that each request went to the page's address.
func noProblems(t *testing.T, p *browser.Page) {
	t.Helper()
	for _, text := range p.Problems() {
		// The answer of a trial that is refused.
		if !strings.Contains(text, "the server responded with a status of 4") {
			t.Errorf("the browser complains: %s", text)
		}
	}
	for _, url := range p.Requests() {
		if !strings.HasPrefix(url, "http://127.0.0.1:") && url != "about:blank" {
			t.Errorf("a request elsewhere: %s", url)
		}
	}
}

// daemon runs a berthd on a made-up machine.
func daemon(t *testing.T, shape string) (socket string, client *berth.Client) {
	t.Helper()
	return daemonWith(t, shape, "cgroups: {tree: memory}\nreserved: {cpus: \"0\"}\n")
}

// daemonWith runs one with settings of its configuration.
func daemonWith(t *testing.T, shape, settings string) (socket string, client *berth.Client) {
	t.Helper()
	bin, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "berth.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\n"+settings),
		0o600); err != nil {
		t.Fatal(err)
	}
	log := nodetest.Log(filepath.Join(dir, "log"))
	process := nodetest.Start(t, exec.Command(filepath.Join(bin, "berthd"), "--config", config, "--root-dir", dir, "--machine", shape,
		"--cpu-manager-policy", "static", "--topology-manager-policy", "restricted"), log)
	t.Cleanup(func() {
		if err := process.End(os.Interrupt); err != nil {
			t.Errorf("berthd: %v\n%s", err, log)
		}
	})
	socket = filepath.Join(dir, "berth.sock")
	client, err = berth.Dial(t.Context(), socket, berth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if err := client.WaitReady(process.Context(t.Context())); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	return socket, client
}

func podText(name, cpus string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, uid: %[1]s}\nspec: {containers: [{name: main, resources: {limits: {cpu: %[2]s, memory: 1Gi}}}]}\n", name, cpus)
}

func admit(t *testing.T, client *berth.Client, name, cpus string) {
	t.Helper()
	pod, err := readText(podText(name, cpus))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Admission().Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}})
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%s: %v, %v", name, answer.GetMessage(), err)
	}
}

// checkMap compares the CPUs of a map with List.
func checkMap(t *testing.T, p *browser.Page, client *berth.Client) {
	t.Helper()
	all, err := client.List(t.Context(), &allocationv1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	p.Until(fmt.Sprintf(`document.getElementById('main').dataset.revision === '%d'`, all.GetRevision()))
	var drawn map[string][]int
	p.Eval(`(() => { const out = {}; for (const r of document.querySelectorAll('.map [data-cpu]')) (out[r.classList[1]] ??= []).push(Number(r.dataset.cpu)); return out; })()`, &drawn)
	var exclusive cpuset.Set
	for _, pod := range all.GetPods() {
		exclusive = exclusive.Union(command.OwnCPUs(pod))
	}
	if got := cpuset.Of(drawn["pod"]...); got != exclusive {
		t.Errorf("the map has exclusive CPUs %s, List %s", got, exclusive)
	}
	if got, want := cpuset.Of(drawn["shared"]...), command.Set(all.GetSharedCpus()).Minus(cpuset.Of(drawn["reserved"]...)); got != want {
		t.Errorf("the map has shared CPUs %s, List %s", got, want)
	}
}

// TestWebClaims shows what claims on dynamic resources have: their CPUs on the map, the containers that use a claim, and
// what is left after it was given back.
func TestWebClaims(t *testing.T) {
	p := browser.Open(t, 1280, 1000)
	socket, client := daemonWith(t, "2s4c1t,mem=64Gi", `beside: kubelet
reserved: {cpus: "0-2,4-6", system: {memory: 20Gi}, evictionHard: {}}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 10Gi}}, {numaNode: 1, limits: {memory: 10Gi}}]}
dra: {cpus: "1-2,5-6", memory: [{numaNode: 0, limits: {memory: 8Gi}}, {numaNode: 1, limits: {memory: 8Gi}}]}
`)
	send := func(req *admissionv1.AdmitRequest) {
		t.Helper()
		if answer, err := client.Admission().Admit(t.Context(), req); err != nil ||
			answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
			t.Fatalf("%v, %v", answer.GetMessage(), err)
		}
	}
	// A claim and a pod of the same name.
	resources := map[string]string{"cpu": "1", "memory": "1Gi"}
	send(&admissionv1.AdmitRequest{Owner: "dra", Subject: &admissionv1.AdmitRequest_ResourceClaim{ResourceClaim: &admissionv1.ResourceClaim{
		Uid: "claim-uid", Name: "train", Devices: []*admissionv1.ClaimDevice{{Name: "left", NumaNode: 0, Resources: resources},
			{Name: "right", NumaNode: 1, Resources: resources}},
	}}})
	admit(t, client, "train", "1")
	p.Load(serve(t, socket))
	p.Until(`document.getElementById('main').dataset.view === 'now'`)
	kinds := func(want map[string]string) {
		t.Helper()
		checkMap(t, p, client)
		var drawn map[string][]int
		p.Eval(`(() => { const out = {}; for (const r of document.querySelectorAll('.map [data-cpu]')) (out[r.classList[1]] ??= []).push(Number(r.dataset.cpu)); return out; })()`, &drawn)
		got := map[string]string{}
		for kind, cpus := range drawn {
			got[kind] = cpuset.Of(cpus...).String()
		}
		if !maps.Equal(got, want) {
			t.Errorf("the map has %v, want %v", got, want)
		}
	}
	// The claim has CPUs 1 and 5 of the reserved ones, and the pod has CPU 3.
	kinds(map[string]string{"pod": "1,3,5", "shared": "7", "reserved": "0,2,4,6"})
	about := func(cpu int, want string) {
		t.Helper()
		p.Eval(fmt.Sprintf(`document.querySelector('.map [data-cpu="%d"]').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))`, cpu), nil)
		p.Until(fmt.Sprintf(`document.getElementById('about').textContent.startsWith('CPU %d: ')`, cpu))
		var got string
		p.Eval(`document.getElementById('about').textContent`, &got)
		if !strings.Contains(got, want) {
			t.Errorf("about CPU %d: %q, want %q", cpu, got, want)
		}
	}
	about(5, "Exclusive, held by claim default/train, not in use.")
	about(3, "Exclusive, held by default/train, container main.")
	about(2, "Reserved for the system, or for claims on dynamic resources, and shared:")
	var names []string
	p.Eval(`[...document.querySelectorAll('#pods td:nth-child(2)')].map((b) => b.textContent)`, &names)
	if fmt.Sprint(names) != "[claim default/train default/train]" {
		t.Errorf("the table has %q", names)
	}
	user, err := readText(podText("user", "500m"))
	if err != nil {
		t.Fatal(err)
	}
	send(&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: user}, ExternalDevices: []*admissionv1.ExternalDevices{{
		ContainerName: "main", Devices: []*typesv1.ExternalDevice{{Resource: "dra.berthd.github.io/claim", Id: "claim-uid:left"}},
	}}})
	kinds(map[string]string{"pod": "1,3,5", "shared": "7", "reserved": "0,2,4,6"})
	about(1, "held by claim default/train, used by default/user/main.")
	shot(t, p, "claims")
	var row string
	p.Eval(`document.querySelector('#pods tr[data-pod="claim-uid"]').innerText`, &row)
	for _, want := range []string{"1, 5", "0, 1", "memory"} {
		if !strings.Contains(row, want) {
			t.Errorf("the claim's row %q lacks %q", row, want)
		}
	}
	if _, err := client.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "claim-uid", Owner: "dra"}); err != nil {
		t.Fatal(err)
	}
	kinds(map[string]string{"pod": "3", "shared": "7", "reserved": "0-2,4-6"})
	noProblems(t, p)
}

// TestWebLive shows a real berthd with 60 pods that come and go.
func TestWebLive(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	socket, client := daemon(t, "2s4n32c2t")
	for i := range 60 {
		admit(t, client, fmt.Sprintf("pod-%d", i), []string{"2", "4", "1500m", "6"}[i%4])
	}
	p.Load(serve(t, socket))
	p.Until(`document.getElementById('main').dataset.view === 'now'`)
	checkMap(t, p, client)
	for i := range 60 {
		if i%3 == 0 {
			if _, err := client.Admission().RemovePod(t.Context(),
				&admissionv1.RemovePodRequest{PodUid: fmt.Sprintf("pod-%d", i)}); err != nil {
				t.Fatal(err)
			}
			admit(t, client, fmt.Sprintf("new-%d", i), "2")
		}
	}
	checkMap(t, p, client)
	var numbers int
	p.Eval(`new Set([...document.querySelectorAll('.map .number')].map((n) => n.textContent)).size`, &numbers)
	if numbers != 512 {
		t.Errorf("%d CPUs have their number", numbers)
	}

	reject(t, client, "large", "420")
	p.Until(`document.querySelector('#attention .items')`)
	p.Resize(1440, 1200)
	shot(t, p, "page-now")
	p.Resize(1440, 1000)

	// The delay of a change, by the browser's clock.
	p.Eval(`window.seen = new Promise((done) => { const from = performance.now(); new MutationObserver((_, o) => {
		if (document.querySelector('#pods tr[data-pod="late"]')) { o.disconnect(); done(performance.now() - from); } }).observe(document.getElementById('main'), {childList: true, subtree: true}); }); 0`, nil)
	admit(t, client, "late", "8")
	var delay, drawn float64
	p.Eval(`window.seen`, &delay)
	p.Eval(`Number(document.getElementById('main').dataset.drawn)`, &drawn)
	t.Logf("a change shows after %.0f ms; the browser put the view in place in %.0f ms", delay, drawn)

	// Who has a CPU, by keyboard; and the selection stays when something changes.
	tabTo(t, p, ".map")
	p.Press("ArrowRight", "ArrowRight", "ArrowDown")
	p.Until(`document.getElementById('about').textContent.startsWith('CPU ')`)
	p.Press("Enter")
	p.Until(`location.hash.startsWith('#/now/cpu/') && document.querySelector('.map .cell.at')`)
	admit(t, client, "later", "2")
	p.Until(`document.querySelector('.map').getAttribute('aria-label').includes('with 62 pods')`)
	p.Until(`document.getElementById('about').textContent.startsWith('CPU ') && document.activeElement.classList.contains('map') && document.querySelector('.map .cell.at')`)
	p.Press("Escape")
	p.Until(`location.hash === '#/now' && !document.querySelector('.at')`)

	// The filter, and a pod everywhere.
	p.Press("/")
	p.Until(`document.activeElement.id === 'filter'`)
	p.Type("late")
	p.Until(`document.querySelectorAll('#pods tbody tr').length === 2`)
	tabTo(t, p, `#pods td a[href="#/now/pod/late"]`)
	p.Press("Enter")
	p.Until(`document.querySelectorAll('.map .cell.at').length === 8 && document.querySelector('#pods tr.at') && document.querySelector('#totals tr.lit')`)
	p.Until(`document.getElementById('about').textContent.includes('default/late: CPUs ')`)
	p.Press("Escape", "?")
	p.Until(`document.querySelector('dialog').open`)
	p.Press("Escape")
	p.Until(`!document.querySelector('dialog').open && location.hash === '#/now'`)
	tabTo(t, p, `#totals a[href="#/now/node/3"]`)
	p.Press("Enter")
	p.Until(`document.querySelector('.map .box.at')?.dataset.node === '3' && document.getElementById('about').textContent.startsWith('Node 3: CPUs ')`)
	noProblems(t, p)
}

// tabTo goes with the Tab key to the element of a selector.
func tabTo(t *testing.T, p *browser.Page, selector string) {
	t.Helper()
	quoted, err := json.Marshal(selector)
	if err != nil {
		t.Fatal(err)
	}
	for range 400 {
		var there bool
		if p.Eval(fmt.Sprintf(`document.activeElement?.matches(%s) ?? false`, quoted), &there); there {
			return
		}
		p.Press("Tab")
	}
	t.Fatalf("the Tab key does not reach %s", selector)
}

// shot keeps a picture where BERTH_SHOTS names a directory.
func shot(t *testing.T, p *browser.Page, name string) {
	t.Helper()
	if dir := os.Getenv("BERTH_SHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), p.Picture(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
