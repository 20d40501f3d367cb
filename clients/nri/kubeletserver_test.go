package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/nri/policy"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// webKubelet plays the web server of a kubelet.
type webKubelet struct {
	mu    sync.Mutex
	calls int
	code  int
	text  string        // in place of the pods
	hold  chan struct{} // answers wait until it is closed
	pods  []corev1.Pod
}

func (w *webKubelet) set(change func(w *webKubelet)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

func (w *webKubelet) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.calls++
	code, text, hold, pods := w.code, w.text, w.hold, w.pods
	w.mu.Unlock()
	if hold != nil {
		<-hold
	}
	switch {
	case r.URL.Path != "/pods" || r.Method != http.MethodGet:
		http.NotFound(out, r)
	case r.Header.Get("Authorization") != "Bearer secret":
		http.Error(out, "Unauthorized", http.StatusUnauthorized)
	case code == http.StatusFound:
		http.Redirect(out, r, "/elsewhere", code)
	case code != 0:
		http.Error(out, text, code)
	case text != "":
		_, _ = io.WriteString(out, text)
	default:
		_ = json.NewEncoder(out).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: pods})
	}
}

// issue makes a certificate for a server, and the authority that has signed it, as PEM.
func issue(t *testing.T, name string) (tls.Certificate, []byte) {
	t.Helper()
	sign := func(c, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = key
		}
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		c.Subject = pkix.Name{CommonName: name}
		text, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		return text, key
	}
	authority := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	root, signer := sign(authority, authority, nil)
	leaf, key := sign(&x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, authority,
		signer)
	return tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root})
}

// startWebKubelet starts a web server with a certificate of a name, and returns a source that trusts it and calls it the node n1.
func startWebKubelet(t *testing.T, name string) (*webKubelet, *kubeletServer) {
	t.Helper()
	w := &webKubelet{}
	certificate, authority := issue(t, name)
	server := httptest.NewUnstartedServer(w)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	for file, text := range map[string]string{"token": "secret\n", "ca.crt": string(authority)} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k, err := newKubeletServer(strings.TrimPrefix(server.URL, "https://"), "n1", dir, "")
	if err != nil {
		t.Fatal(err)
	}
	k.Most, k.timeout = largeList, time.Minute // a slow machine
	return w, k
}

// largeList is the largest list of the sources of tests, in bytes.
const largeList = 100_000

// podOf is a pod of the node n1 with one container, which the kubelet has had from the API server for an hour.
func podOf(name, uid, cpu string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(uid), ResourceVersion: "1",
			Annotations: map[string]string{workload.SourceAnnotation: workload.FromAPIServer,
				workload.SeenAnnotation: time.Now().Add(-time.Hour).Format(time.RFC3339Nano)}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
}

// patient is the context of a runtime that waits for long, so calls of the kubelet may, too.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventuallyPod calls until the source has an answer: a slow machine may need more than the time of one call.
func eventuallyPod(t *testing.T, k *kubeletServer, uid string) (cpu string) {
	t.Helper()
	nodetest.Eventually(t, time.Minute, "the kubelet answers", func() bool {
		pod, err := k.Pod(patient(t), uid)
		if err != nil || k.failed() != nil {
			return false
		}
		cpu = ""
		if pod != nil {
			cpu = pod.GetSpec().GetContainers()[0].GetResources().GetRequests()["cpu"]
		}
		return true
	})
	return cpu
}

// TestKubeletServer: pods are found by uid. A static pod has the uid that the runtime has, and its mirror is no pod that runs. A pod of the
// same name with another uid is another pod. A list answers one question about each pod.
func TestKubeletServer(t *testing.T) {
	t.Parallel()
	w, k := startWebKubelet(t, "n1")
	static, mirror := podOf("web-n1", "static-hash", "2"), podOf("web-n1", "mirror-uid", "3")
	static.Annotations = map[string]string{workload.SourceAnnotation: "file", "kubernetes.io/config.hash": "static-hash"}
	mirror.Annotations = map[string]string{workload.SourceAnnotation: "file", workload.MirrorAnnotation: "static-hash"}
	ended, deleted := podOf("ended", "ended", "1"), podOf("deleted", "deleted", "1")
	ended.Status.Phase, deleted.DeletionTimestamp = corev1.PodFailed, &metav1.Time{Time: time.Unix(1, 0)}
	waits := *resized()
	w.pods = []corev1.Pod{podOf("job", "old-uid", "1"), podOf("job", "new-uid", "4"), static, mirror, ended, deleted, waits}

	for _, row := range []struct{ uid, want string }{
		{"new-uid", "4"}, {"old-uid", "1"}, {"static-hash", "2"}, {"mirror-uid", ""}, {"job", ""}, {"nobody", ""}, {"u", "1"},
	} {
		if got := eventuallyPod(t, k, row.uid); got != row.want {
			t.Errorf("pod %s requests %q of cpu, want %q", row.uid, got, row.want)
		}
	}
	uids, err := k.Active(patient(t))
	if slices.Sort(uids); err != nil || !slices.Equal(uids, []string{"new-uid", "old-uid", "static-hash", "u"}) {
		t.Errorf("these pods are active: %v, %v", uids, err)
	}

	eventuallyPod(t, k, "nobody") // a new list
	w.set(func(w *webKubelet) { w.calls = 0 })
	eventuallyPod(t, k, "new-uid")
	eventuallyPod(t, k, "static-hash")
	if w.calls != 0 {
		t.Errorf("first questions about the pods of a list, one of which an earlier list has answered, are %d calls", w.calls)
	}
	w.set(func(w *webKubelet) { w.pods[1] = podOf("job", "new-uid", "5") })
	if got := eventuallyPod(t, k, "new-uid"); got != "5" {
		t.Errorf("after a resize the pod requests %q", got)
	}
	k.now = func() time.Time { return time.Now().Add(servedAge + time.Second) }
	w.set(func(w *webKubelet) { w.pods[0] = podOf("job", "old-uid", "6") })
	if got := eventuallyPod(t, k, "old-uid"); got != "6" {
		t.Errorf("from an old list the pod requests %q", got)
	}
}

// TestKubeletServerHasJustStarted: a kubelet that was restarted lists no pods of the API server at first, and adds them one by one. A pod
// that is not in such a list may still be active. A pod that is in the list is known.
func TestKubeletServerHasJustStarted(t *testing.T) {
	t.Parallel()
	static, mirror := podOf("web-n1", "static", "2"), podOf("web-n1", "mirror", "2")
	young, undated := podOf("job", "u", "1"), podOf("job", "u", "1")
	static.Annotations[workload.SourceAnnotation] = "file"
	mirror.Annotations[workload.MirrorAnnotation] = "static"
	young.Annotations[workload.SeenAnnotation] = time.Now().Add(-time.Second).Format(time.RFC3339Nano)
	delete(undated.Annotations, workload.SeenAnnotation)
	null := `{"kind": "PodList", "apiVersion": "v1", "items": null}`
	for name, row := range map[string]struct {
		pods   []corev1.Pod
		text   string
		active []string // nil if that is not known yet
	}{
		"null":                   {text: null},
		"no pods":                {pods: []corev1.Pod{}},
		"only a static pod":      {pods: []corev1.Pod{static}},
		"also its mirror":        {pods: []corev1.Pod{static, mirror}},
		"the first pods":         {pods: []corev1.Pod{static, young}},
		"a pod without its time": {pods: []corev1.Pod{static, undated}},
		"all pods":               {pods: []corev1.Pod{static, young, podOf("old", "o", "1")}, active: []string{"static", "u", "o"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, k := startWebKubelet(t, "n1")
			w.pods, w.text = row.pods, row.text
			var missing error
			nodetest.Eventually(t, time.Minute, "the kubelet answers", func() bool {
				var pod *typesv1.Pod
				if pod, missing = k.Pod(patient(t), "another"); pod != nil {
					t.Errorf("a pod that the kubelet does not list is %v", pod)
				}
				return k.failed() == nil && !errors.Is(missing, context.DeadlineExceeded)
			})
			uids, err := k.Active(patient(t))
			early := row.active == nil
			if (err != nil) != early || !slices.Equal(uids, row.active) || errdefs.ClassOf(err) == errdefs.Unsupported {
				t.Errorf("active are %v, %v; want %v", uids, err, row.active)
			}
			if (missing != nil) != early || early && errdefs.ClassOf(missing) != errdefs.Precondition {
				t.Errorf("of a pod that is not in the list: %v", missing)
			}
			if len(row.pods) > 0 {
				if got := eventuallyPod(t, k, "static"); got != "2" {
					t.Errorf("the static pod requests %q", got)
				}
			}
			if k.absent() != nil {
				t.Errorf("the web server counts as absent: %v", k.absent())
			}
		})
	}
}

// TestKubeletServerFails: whatever a web server answers that is no list of the node's pods, it counts as absent if it has never answered,
// and as away if it has. The error says why, and has no control characters.
func TestKubeletServerFails(t *testing.T) {
	t.Parallel()
	elsewhere := podOf("other", "o", "1")
	elsewhere.Spec.NodeName = "n2"
	list := func(items string) string { return `{"kind": "PodList", "apiVersion": "v1", "items": ` + items + `}` }
	for name, row := range map[string]struct {
		change func(t *testing.T, w *webKubelet, k *kubeletServer)
		text   string
	}{
		"a token that is not known": {func(t *testing.T, _ *webKubelet, k *kubeletServer) {
			if err := os.WriteFile(filepath.Join(k.Accounts, "token"), []byte("stale"), 0o600); err != nil {
				t.Error(err)
			}
		}, "401 Unauthorized"},
		"no right": {func(_ *testing.T, w *webKubelet, _ *kubeletServer) {
			w.code, w.text = http.StatusForbidden, "Forbidden (user=berth, verb=get, resource=nodes, subresource(s)=[proxy])\x1b[2J"
		}, "403 Forbidden: \"Forbidden (user=berth"},
		"no such path":   {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.code = http.StatusNotFound }, "404"},
		"another server": {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.code = http.StatusFound }, "302"},
		"it fails":       {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.code, w.text = 500, strings.Repeat("x", 1<<20) }, "500"},
		"another authority": {func(t *testing.T, _ *webKubelet, k *kubeletServer) {
			_, other := issue(t, "n1")
			if err := os.WriteFile(filepath.Join(k.Accounts, "ca.crt"), other, 0o600); err != nil {
				t.Error(err)
			}
		}, "signed by unknown authority"},
		"no certificates": {func(t *testing.T, _ *webKubelet, k *kubeletServer) {
			if err := os.WriteFile(filepath.Join(k.Accounts, "ca.crt"), []byte("none"), 0o600); err != nil {
				t.Error(err)
			}
		}, "expected certificates in PEM"},
		"no file of --kubelet-ca": {func(_ *testing.T, _ *webKubelet, k *kubeletServer) { k.Authority = k.Accounts + "/none" },
			"does not exist"},
		"another node's certificate": {func(_ *testing.T, _ *webKubelet, k *kubeletServer) {
			k.Node = "n2"
		}, "certificate is valid for n1, not n2"},
		"another node's pods": {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.pods = []corev1.Pod{elsewhere} },
			`of node "n2", expected those of "n1"`},
		"too large": {func(_ *testing.T, w *webKubelet, _ *kubeletServer) {
			w.text = list("[" + strings.Repeat(" ", largeList) + "]")
		}, "larger than"},
		"a text without an end": {func(_ *testing.T, w *webKubelet, _ *kubeletServer) {
			w.text = `{"kind": "` + strings.Repeat("a", largeList+1)
		}, "larger than"},
		"no JSON":        {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.text = "<html>" }, "invalid character"},
		"half an answer": {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.text = list("[{}]")[:50] }, "EOF"},
		"a list of another kind": {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.text = `{"kind": "NodeList", "items": []}` },
			"kind"},
		"no list":              {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.text = `{"kind": "PodList"}` }, "no items"},
		"no pods in the list":  {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.text = list("[1]") }, "cannot unmarshal"},
		"an object for a list": {func(_ *testing.T, w *webKubelet, _ *kubeletServer) { w.text = list("{}") }, "expected a list"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, answered := range []bool{false, true} {
				w, k := startWebKubelet(t, "n1")
				w.pods = []corev1.Pod{podOf("job", "u", "1")}
				if answered {
					eventuallyPod(t, k, "nobody")
				}
				row.change(t, w, k)
				nodetest.Eventually(t, time.Minute, "the list fails", func() bool {
					_, _ = k.Pod(patient(t), "other")
					return k.failed() != nil
				})
				if got := k.failed().Error(); !strings.Contains(got, row.text) || strings.ContainsAny(got, "\x1b\n") || len(got) > 1000 {
					t.Errorf("%.2000q, without %q", got, row.text)
				}
				pod, err := k.Pod(patient(t), "other")
				if pod != nil || (err != nil) != answered || (k.absent() == nil) != answered {
					t.Errorf("answered before %v: %v, %v, absent for %v", answered, pod, err, k.absent())
				}
				if _, err := k.Active(patient(t)); err == nil || (errdefs.ClassOf(err) == errdefs.Unsupported) == answered {
					t.Errorf("answered before %v: the pods are listed with %v", answered, err)
				}
				k.now = func() time.Time { return time.Now().Add(servedGrace + time.Minute) }
				if pod, err := k.Pod(patient(t), "other"); pod != nil || err != nil || k.absent() == nil {
					t.Errorf("a server that is lost: %v, %v, absent for %v", pod, err, k.absent())
				}
			}
		})
	}
}

// TestKubeletServerGrace: failures are temporary for some minutes after the first one, however long nothing was asked before. A good answer
// ends that.
func TestKubeletServerGrace(t *testing.T) {
	t.Parallel()
	w, k := startWebKubelet(t, "n1")
	w.pods = []corev1.Pod{podOf("job", "u", "1")}
	now := time.Now()
	k.now = func() time.Time { return now }
	ask := func(fails bool) {
		t.Helper()
		w.set(func(w *webKubelet) { w.code = map[bool]int{true: http.StatusForbidden}[fails] })
		nodetest.Eventually(t, time.Minute, "the kubelet answers", func() bool {
			_, _ = k.Pod(patient(t), "other")
			return (k.failed() != nil) == fails
		})
	}
	ask(false)
	for _, row := range []struct {
		after  time.Duration
		fails  bool
		absent bool
	}{
		{10 * time.Hour, true, false}, {servedGrace, true, false}, {time.Second, true, true}, {0, false, false}, {time.Hour, true, false},
	} {
		now = now.Add(row.after)
		ask(row.fails)
		if (k.absent() != nil) != row.absent {
			t.Errorf("after %s more, fails %v: absent for %v", row.after, row.fails, k.absent())
		}
	}
}

// TestKubeletServerIsSlow: a caller does not wait for a slow kubelet, and its next try has the list. One list is read at a time, however
// many callers wait. Pods that are known to exist wait for the first list.
func TestKubeletServerIsSlow(t *testing.T) {
	t.Parallel()
	w, k := startWebKubelet(t, "n1")
	w.pods, w.hold = []corev1.Pod{podOf("job", "u", "1")}, make(chan struct{})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if pod, err := k.Pod(t.Context(), "u"); pod != nil || err == nil || !strings.Contains(err.Error(), "deadline exceeded") {
				t.Errorf("while the first list is read: %v, %v", pod, err)
			}
		})
	}
	all.Wait()
	w.set(func(w *webKubelet) {
		if w.calls != 1 {
			t.Errorf("%d lists are read at the same time", w.calls)
		}
		close(w.hold)
		w.hold = nil
	})
	if got := eventuallyPod(t, k, "u"); got != "1" {
		t.Errorf("the pod requests %q", got)
	}
}

// TestKubeletServerHangs: a list that never ends is given up.
func TestKubeletServerHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &kubeletServer{now: time.Now, timeout: servedTimeout}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		done := make(chan struct{})
		begun := time.Now()
		k.reading = done
		go k.list(ctx, done, func(ctx context.Context) (served, error) {
			<-ctx.Done()
			return served{}, ctx.Err()
		})
		<-done
		if waited := time.Since(begun); waited != servedTimeout || k.failed() == nil {
			t.Errorf("given up after %s: %v", waited, k.failed())
		}
	})
}

// TestSources: the web server is called only without a Pods API, and the state of the node says where specifications come from.
func TestSources(t *testing.T) {
	t.Parallel()
	w, server := startWebKubelet(t, "n1")
	w.pods = []corev1.Pod{podOf("job", "u", "1")}
	dir, err := os.MkdirTemp("", "api") // the paths of sockets are short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	api, err := newKubelet(filepath.Join(dir, "none"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.close() })
	expect := func(s *sources, reason, text string) {
		t.Helper()
		if got := s.ready(); got.reason != reason || !strings.Contains(got.message, text) || !got.ready() {
			t.Errorf("the state is %+v, want %s with %q", got, reason, text)
		}
	}
	expect(nil, reasonReady, "")
	if (&sources{}).source() != nil || (&sources{api: api}).source() == nil || (&sources{server: server}).source() == nil {
		t.Error("a policy has a source if there is a way, and else none")
	}
	for _, s := range []*sources{{server: server}, {api: api, server: server}} {
		expect(s, reasonReady, "")
		nodetest.Eventually(t, time.Minute, "the pod is found", func() bool {
			pod, from, err := s.Pod(patient(t), "u")
			return err == nil && pod != nil && from == policy.FromKubeletServer
		})
		expect(s, reasonKubeletServer, "their specifications come from https://127.0.0.1:")
	}
	came := sources{api: api, server: server}
	if _, _, err := came.Pod(patient(t), "u"); err != nil {
		t.Error(err)
	}
	expect(&came, reasonKubeletServer, "")
	l, err := net.Listen("unix", api.path) // the kubelet was restarted, and nothing has been asked since
	if err != nil {
		t.Fatal(err)
	}
	expect(&came, reasonReady, "")
	_ = l.Close() // and removes its socket
	expect(&came, reasonKubeletServer, "")
	for _, s := range []*sources{{}, {api: api}} {
		if pod, from, err := s.Pod(patient(t), "u"); pod != nil || from != "" || err != nil {
			t.Errorf("without a source: %v, %q, %v", pod, from, err)
		}
		if _, err := s.Active(patient(t)); errdefs.ClassOf(err) != errdefs.Unsupported {
			t.Errorf("without a source the pods are listed with %v", err)
		}
		expect(s, reasonByContainer, "--kubelet is not set")
	}
	_, refusing := startWebKubelet(t, "n2")
	s := &sources{server: refusing}
	nodetest.Eventually(t, time.Minute, "the certificate is refused", func() bool {
		_, _, _ = s.Pod(patient(t), "u")
		return refusing.failed() != nil
	})
	expect(s, reasonByContainer, "its web server does not serve its pods: ")
}

// TestKubeletAddress: addresses of --kubelet, and what it needs.
func TestKubeletAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"10.0.0.1": "https://10.0.0.1:10250/pods", "fd00::1": "https://[fd00::1]:10250/pods",
		"10.0.0.1:10251": "https://10.0.0.1:10251/pods",
		"[fd00::1]:1":    "https://[fd00::1]:1/pods", "node": "https://node:10250/pods",
		"": "", ":1": "", "node:": "", "https://node": "", "a@b": "", "node:http": "", "node/x": "",
	} {
		k, err := newKubeletServer(address, "n1", "", "")
		if (err == nil) != (want != "") || err == nil && k.URL != want {
			t.Errorf("%q: %+v, %v; want %q", address, k, err, want)
		}
	}
	for _, o := range []podOptions{{kubeletCA: "/ca"}, {kubelet: "10.0.0.1"}, {podsAPI: "relative"}} {
		if _, _, err := (&options{podOptions: o}).sources(nil); err == nil {
			t.Errorf("%+v has sources", o)
		}
	}
	if _, _, err := (&options{podOptions: podOptions{kubelet: "a b"}}).sources(&apiServer{}); err == nil {
		t.Error("an address that is none has a source")
	}
}
