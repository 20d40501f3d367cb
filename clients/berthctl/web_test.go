package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthctl/machine"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/hack/browser"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
)

var programs = nodetest.NewPrograms(map[string]string{"berthd": "server/berthd"})

// serve runs berthctl web until the test ends, and returns its link.
func serve(t *testing.T, socket string) (link string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	done := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		done <- run(ctx, command.Env{
			In: strings.NewReader(""), Out: write, Err: &errs, Now: time.Now, Getenv: func(string) string { return "" },
			Dial: func(ctx context.Context, _ string) (*berth.Client, error) {
				return berth.Dial(ctx, socket, berth.Options{Attempts: 1})
			},
		}, []string{"web", "--no-browser", "--listen", "127.0.0.1:0"})
		_ = write.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != command.ExitDone {
			t.Errorf("berthctl web ended with %d: %s", code, errs.String())
		}
	})
	buffer := make([]byte, 256)
	n, err := read.Read(buffer)
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	return strings.TrimSpace(string(buffer[:n]))
}

// TestWebLogin: only who has the link gets data, and only the first one. There is no cookie, which browsers would send to
// other ports of this host.
func TestWebLogin(t *testing.T) {
	t.Parallel()
	link := serve(t, (&fake{}).start(t))
	base, key, ok := strings.Cut(link, "/#login=")
	if !ok || !strings.HasPrefix(base, "http://127.0.0.1:") {
		t.Fatalf("the link %q", link)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	send := func(method, path, body, session string, want int, text string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Berth-Page", "1")
		r.Header.Set("X-Berth-Session", session)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		got, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != want || !strings.Contains(string(got), text) || len(answer.Cookies()) > 0 {
			t.Errorf("%s %s: %d %s, %v, %v", method, path, answer.StatusCode, got, answer.Cookies(), err)
		}
		return string(got)
	}
	send("GET", "/", "", "", http.StatusOK, "<title>berth</title>")
	send("GET", "/api/v1/pods", "", "", http.StatusUnauthorized, "open the link")
	send("GET", "/api/v1/pods", "", key, http.StatusUnauthorized, "open the link")
	send("POST", "/api/v1/login", "wrong", "", http.StatusForbidden, "has been used or is wrong")
	send("POST", "/api/v1/login", strings.Repeat("x", 1<<20), "", http.StatusForbidden, "")
	send("GET", "/api/v1/login", key, "", http.StatusForbidden, "")
	var login struct{ Session string }
	if err := json.Unmarshal([]byte(send("POST", "/api/v1/login", key, "", http.StatusOK, "session")), &login); err != nil ||
		len(login.Session) < 32 {
		t.Fatalf("%v %q", err, login.Session)
	}
	send("GET", "/api/v1/pods", "", login.Session, http.StatusOK, `"web"`)
	send("POST", "/api/v1/login", key, "", http.StatusForbidden, "has been used")
}

// TestWebIdlePosts: another user's idle requests neither stay nor keep the person out.
func TestWebIdlePosts(t *testing.T) {
	t.Parallel()
	link := serve(t, (&fake{}).start(t))
	base, key, _ := strings.Cut(link, "/#login=")
	at := strings.TrimPrefix(base, "http://")
	var idle []net.Conn
	for range 5 * machine.WebConnections {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// A write may fail: the connection can be closed already.
		_, _ = io.WriteString(c, "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nX-Berth-Page: 1\r\nContent-Length: 100\r\n\r\n")
		idle = append(idle, c)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/api/v1/login", strings.NewReader(key))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Berth-Page", "1")
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("the login of the person: %d", answer.StatusCode)
	}
	for _, c := range idle[:4*machine.WebConnections] { // a read ends, because these have been closed
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("an idle request has an answer of %d bytes", n)
		}
	}
}

func TestWebRefuses(t *testing.T) {
	t.Parallel()
	path := (&fake{}).start(t)
	for args, want := range map[string]string{
		"web --no-browser --listen 0.0.0.0:0": "expected an address of this machine only",
		"web --no-browser --listen x":         "--listen x",
	} {
		if got := invoke(t.Context(), path, "", strings.Fields(args)...); got.code == command.ExitDone || !strings.Contains(got.err, want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

const markup = `<img src=x onerror="window.pwned=1">'"><script>window.pwned=1</script>`

// TestWebHostile shows every view of a berthd in whose answers every text is markup.
func TestWebHostile(t *testing.T) {
	f := &fake{streams: &streams{left: []watched{{commits: life()[:1]}}}}
	kept := []string{"0,3-7", "0", "1-2", "0-7", "ADMISSION1", "ADMISSION9"}
	f.twist = func(r grpc.ServiceRegistrar) grpc.ServiceRegistrar { return twisted{r, kept, markup} }
	link := serve(t, f.start(t))
	p := browser.Open(t, 1200, 900)
	p.Load(link)
	p.Until(`document.getElementById('main').dataset.view === 'machine' && document.body.innerText.includes('onerror')`)
	for _, view := range []string{"pods", "verdicts", "policy", "devices", "whatif", "machine"} {
		p.Eval(`location.hash = '#`+view+`'`, nil)
		p.Until(`document.getElementById('main').dataset.view === '` + view + `'`)
		if view == "verdicts" {
			p.Eval(`document.querySelector('td button').click()`, nil)
			p.Until(`document.querySelector('.explanation')`)
		}
		if view == "whatif" {
			p.Eval(`{ const a = document.getElementById('pod'); a.value = a.value.replace('trial', 'big'); document.getElementById('try').click(); }`, nil)
			p.Until(`document.getElementById('result').textContent.includes('onerror')`)
		}
		var elements int
		p.Eval(`document.querySelectorAll('img, main script, iframe').length + (window.pwned ? 100 : 0)`, &elements)
		if elements != 0 {
			t.Errorf("view %s: names became markup", view)
		}
	}
	if list := p.Problems(); len(list) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(list, "\n"))
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
	if err := client.WaitReady(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	return socket, client
}

func podText(name, cpus string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, uid: %[1]s}\nspec: {containers: [{name: main, resources: {limits: {cpu: %[2]s, memory: 1Gi}}}]}\n", name, cpus)
}

func admit(t *testing.T, client *berth.Client, name, cpus string) {
	t.Helper()
	pod, err := machine.ReadTrial([]byte(podText(name, cpus)))
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
	p.Until(`document.getElementById('main').dataset.view === 'machine'`)
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
		p.Eval(fmt.Sprintf(`document.querySelector('.map [data-cpu="%d"]').dispatchEvent(new PointerEvent('pointermove', {bubbles: true}))`, cpu), nil)
		p.Until(fmt.Sprintf(`document.getElementById('about').textContent.startsWith('CPU %d: ')`, cpu))
		var got string
		p.Eval(`document.getElementById('about').textContent`, &got)
		if !strings.Contains(got, want) {
			t.Errorf("about CPU %d: %q, want %q", cpu, got, want)
		}
	}
	about(5, "Exclusive, held by claim default/train, not in use.")
	about(3, "Exclusive, held by default/train, container main.")
	about(2, "Reserved for the system, or for claims on dynamic resources.")
	var legend []string
	p.Eval(`[...document.querySelectorAll('.legend button')].map((b) => b.textContent)`, &legend)
	if fmt.Sprint(legend) != "[claim default/train default/train]" {
		t.Errorf("the legend has %q", legend)
	}
	user, err := machine.ReadTrial([]byte(podText("user", "500m")))
	if err != nil {
		t.Fatal(err)
	}
	send(&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: user}, ExternalDevices: []*admissionv1.ExternalDevices{{
		ContainerName: "main", Devices: []*typesv1.ExternalDevice{{Resource: "dra.berthd.github.io/claim", Id: "claim-uid:left"}},
	}}})
	kinds(map[string]string{"pod": "1,3,5", "shared": "7", "reserved": "0,2,4,6"})
	about(1, "held by claim default/train, used by default/user/main.")
	shot(t, p, "claims")
	p.Eval(`location.hash = '#pods'`, nil)
	p.Until(`document.getElementById('main').dataset.view === 'pods'`)
	var row string
	p.Eval(`[...document.querySelectorAll('tr')].map((r) => r.innerText).find((r) => r.startsWith('claim default/train'))`, &row)
	for _, want := range []string{"1,5", "0, 1", "memory"} {
		if !strings.Contains(row, want) {
			t.Errorf("the claim's row %q lacks %q", row, want)
		}
	}
	p.Eval(`location.hash = '#machine'`, nil)
	p.Until(`document.getElementById('main').dataset.view === 'machine'`)
	if _, err := client.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "claim-uid", Owner: "dra"}); err != nil {
		t.Fatal(err)
	}
	kinds(map[string]string{"pod": "3", "shared": "7", "reserved": "0-2,4-6"})
	if list := p.Problems(); len(list) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(list, "\n"))
	}
}

// TestWebLive shows a real berthd with 60 pods that come and go.
func TestWebLive(t *testing.T) {
	p := browser.Open(t, 1280, 1000)
	socket, client := daemon(t, "2s4n32c2t")
	for i := range 60 {
		admit(t, client, fmt.Sprintf("pod-%d", i), []string{"2", "4", "1500m", "6"}[i%4])
	}
	link := serve(t, socket)
	p.Load(link)
	p.Until(`document.getElementById('main').dataset.view === 'machine'`)
	checkMap(t, p, client)
	shot(t, p, "machine")
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

	// The delay of a change, by the browser's clock.
	p.Eval(`window.seen = new Promise((done) => { const from = performance.now(); new MutationObserver((_, o) => {
		if ([...document.querySelectorAll('.legend button')].some((b) => b.textContent === 'default/late')) { o.disconnect(); done(performance.now() - from); } }).observe(document.getElementById('main'), {childList: true}); }); 0`, nil)
	admit(t, client, "late", "8")
	var delay, drawn float64
	p.Eval(`window.seen`, &delay)
	p.Eval(`Number(document.getElementById('main').dataset.drawn)`, &drawn)
	t.Logf("a change shows after %.0f ms; the browser put the map in place in %.0f ms", delay, drawn)

	// Letters are black on the color of their pod (WCAG 2.1, 1.4.3).
	var contrast float64
	p.Eval(`Math.min(...[...document.querySelectorAll('.legend .mark')].map((m) => {
		const [r, g, b] = getComputedStyle(m).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05) / 0.05;
	}))`, &contrast)
	if contrast < 4.5 || contrast > 21 {
		t.Errorf("the letters of the legend have a contrast of %.1f:1", contrast)
	}

	// What a person finds out: who has a CPU, by keyboard.
	p.Eval(`document.querySelector('.map').focus()`, nil)
	p.Eval(`for (let i = 0; i < 3; i++) document.querySelector('.map').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))`, nil)
	p.Until(`document.getElementById('about').textContent.startsWith('CPU ')`)
	// The shown object stays when something changes.
	admit(t, client, "later", "2")
	p.Until(`document.querySelector('.map').getAttribute('aria-label').includes('with 62 pods')`)
	p.Until(`document.getElementById('about').textContent.startsWith('CPU ') && document.activeElement.classList.contains('map')`)

	for name, cpus := range map[string]string{"fits": "4", "large": "420"} {
		p.Eval(`location.hash = '#whatif'`, nil)
		p.Until(`document.getElementById('main').dataset.view === 'whatif'`)
		text, err := json.Marshal(podText(name, cpus))
		if err != nil {
			t.Fatal(err)
		}
		p.Eval(fmt.Sprintf(`{ const a = document.getElementById('pod'); a.value = %s; a.dispatchEvent(new Event('input')); document.getElementById('try').click(); }`, text), nil)
		p.Until(`document.getElementById('result').textContent.includes('default/` + name + `')`)
		pod, err := machine.ReadTrial([]byte(podText(name, cpus)))
		if err != nil {
			t.Fatal(err)
		}
		dry, err := client.Admission().Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod},
			DryRun: true, TraceLevel: admissionv1.TraceLevel_TRACE_LEVEL_FULL})
		if err != nil {
			t.Fatal(err)
		}
		var result string
		p.Eval(`document.getElementById('result').innerText`, &result)
		wants := []string{strings.ToLower(strings.TrimPrefix(dry.GetVerdict().String(), "VERDICT_")), dry.GetReason(), dry.GetMessage()}
		for _, s := range dry.GetTrace().GetSuggestions() {
			wants = append(wants, s.GetText())
		}
		var planned cpuset.Set
		for _, s := range dry.GetTrace().GetSteps() {
			planned = planned.Union(command.Set(s.GetClaim().GetCpu().GetCpus()))
		}
		for _, want := range wants {
			if !strings.Contains(result, want) {
				t.Errorf("%s: the page does not say %q:\n%s", name, want, result)
			}
		}
		var onMap []int
		p.Eval(`[...document.querySelectorAll('#result .planned')].map((r) => Number(r.dataset.cpu))`, &onMap)
		if got := cpuset.Of(onMap...); got != planned {
			t.Errorf("%s: the map has CPUs %s, the dry run %s", name, got, planned)
		}
		shot(t, p, "whatif-"+name)
	}
	for _, view := range []string{"pods", "verdicts", "policy", "devices"} {
		p.Eval(`location.hash = '#`+view+`'`, nil)
		p.Until(`document.getElementById('main').dataset.view === '` + view + `'`)
		shot(t, p, view)
	}
	p.Eval(`location.hash = '#policy'`, nil)
	p.Until(`document.getElementById('trypolicy')`)
	p.Eval(`document.getElementById('topologyPolicy').value = 'none'; document.getElementById('trypolicy').click()`, nil)
	p.Until(`document.body.innerText.includes('If it came anew')`)
	p.Media("prefers-color-scheme", "dark")
	p.Eval(`location.hash = '#machine'`, nil)
	p.Until(`document.querySelector('.map')`)
	shot(t, p, "dark")

	base := link[:strings.Index(link, "/#login=")]
	for _, url := range p.Requests() {
		if !strings.HasPrefix(url, base) && url != "about:blank" {
			t.Errorf("a request elsewhere: %s", url)
		}
	}
	if list := p.Problems(); len(list) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(list, "\n"))
	}
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

// TestReadTrial: the page reads a pod as admit --dry-run does.
func TestReadTrial(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "no pod", "kind: [": "", podText("a", "1") + "---\n" + podText("b", "1"): "expected one pod, found 2", "kind: Node": "",
	} {
		if pod, err := machine.ReadTrial([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, pod, err)
		}
	}
	pod, err := machine.ReadTrial([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n"))
	if err != nil || pod.GetMetadata().GetUid() == "" || !slices.Equal(pod.GetSpec().GetContainers(), []*typesv1.Container(nil)) {
		t.Errorf("%v, %v", pod, err)
	}
}
