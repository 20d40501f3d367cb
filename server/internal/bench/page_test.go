package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/page"
	"github.com/berthd/berth/hack/browser"
	"github.com/berthd/berth/server/internal/app"
)

// largeMachine has 4,096 CPUs on 16 NUMA nodes.
const (
	largeMachine = "8s2n128c2t"
	largePods    = 500
)

// runLarge runs berthd with 500 pods on 4,096 CPUs, most of them with CPUs of their own.
func runLarge(t testing.TB) *running {
	t.Helper()
	berthd := runBerthd(t, func(c *config.Config, _ *app.Environment) {
		c.Machine, c.Node.MaxPods = largeMachine, 2*largePods
	})
	for i := range largePods {
		pod := wirePod(fmt.Sprint("pod", i))
		pod.Spec.Containers = []*typesv1.Container{{Name: "main", Resources: &typesv1.ResourceRequirements{
			Limits: map[string]string{"cpu": fmt.Sprint(1 + i%8), "memory": "1Gi"},
		}}}
		if err := berthd.admitPod(t.Context(), pod, false); err != nil {
			t.Fatal(err)
		}
	}
	return berthd
}

// counted is a connection that counts the calls over it.
type counted struct {
	grpc.ClientConnInterface
	calls int
}

func (c *counted) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	c.calls++
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, o...)
}

// servePage serves the page of a berthd, and returns its address.
func servePage(t testing.TB, conn grpc.ClientConnInterface) string {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	s := httptest.NewUnstartedServer(page.New(page.Options{Conn: conn, About: "bench"}))
	s.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	s.Start()
	t.Cleanup(func() { end(); s.Close() })
	return s.URL
}

// load reads what a page reads when it is opened, and returns how many pods and CPUs it has.
func load(ctx context.Context, url string) (pods, cpus int, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	get := func(path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, "GET", url+"/api/v1/"+path, nil)
		if err != nil {
			return nil, err
		}
		answer, err := http.DefaultClient.Do(r)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", path, answer.Status)
		}
		return answer, err
	}
	for _, path := range []string{"machine", "state", "attention"} {
		answer, err := get(path)
		if err != nil {
			return 0, 0, err
		}
		raw, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			return 0, 0, err
		}
		cpus += strings.Count(string(raw), `"uncoreCache"`)
	}
	answer, err := get("events")
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	for pods < largePods {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return pods, cpus, err
		}
		pods += strings.Count(string(line), `"added":`)
	}
	return pods, cpus, nil
}

// TestPageLoads keeps the benchmark honest: the data has all CPUs and pods, and a page that is open
// while nothing happens makes no calls.
func TestPageLoads(t *testing.T) {
	t.Parallel()
	conn := &counted{ClientConnInterface: runLarge(t).Conn()}
	url := servePage(t, conn)
	if conn.calls != 0 {
		t.Errorf("%d calls before anybody looks", conn.calls)
	}
	pods, cpus, err := load(t.Context(), url)
	if err != nil || pods != largePods || cpus != 4096 {
		t.Errorf("%d pods and %d CPUs, %v", pods, cpus, err)
	}
}

// BenchmarkPage measures a page of 4,096 CPUs and 500 pods: the data of one load, with the
// conversion to JSON, and the drawing in a browser. Late is from an admission until the browser
// shows it, on 512 CPUs; it includes the interval of Watch.
func BenchmarkPage(b *testing.B) {
	b.Run("data of a load/4096/berth", func(b *testing.B) {
		url := servePage(b, runLarge(b).Conn())
		measure(b, func() error { _, _, err := load(b.Context(), url); return err })
	})
	b.Run("drawn in a browser/4096/berth", func(b *testing.B) {
		url := servePage(b, runLarge(b).Conn())
		p := browser.Open(b, 1280, 1000)
		p.Load(url)
		p.Until(fmt.Sprintf(`document.getElementById('status').textContent.startsWith('%d pods')`, largePods))
		start := p.ProcessorTime()
		for b.Loop() {
			p.Eval(`new Promise((done) => { const main = document.getElementById('main');
				new MutationObserver((_, o) => { o.disconnect(); requestAnimationFrame(() => setTimeout(done)); })
					.observe(main, {childList: true});
				location.hash = location.hash === '#/now?again=1' ? '#/now' : '#/now?again=1'; })`, nil)
		}
		b.ReportMetric(float64(p.ProcessorTime()-start)/float64(b.N), "cpu-ns/op")
	})
	b.Run("a change shows/512/berth", func(b *testing.B) {
		berthd := runBerthd(b)
		url := servePage(b, berthd.Conn())
		p := browser.Open(b, 1280, 1000)
		p.Load(url)
		p.Until(`document.getElementById('main').dataset.view === 'now'`)
		sum := 0.0
		n := 0
		for b.Loop() {
			name, err := json.Marshal(fmt.Sprint("default/late", n))
			if err != nil {
				b.Fatal(err)
			}
			p.Eval(fmt.Sprintf(`window.seen = new Promise((done) => { const from = performance.now(); new MutationObserver((_, o) => {
				if ([...document.querySelectorAll('#pods td a')].some((x) => x.textContent.endsWith(%s.split('/')[1]))) {
					o.disconnect(); done(performance.now() - from); }
				}).observe(document.getElementById('main'), {childList: true, subtree: true}); }); 0`, name), nil)
			pod := wirePod(fmt.Sprint("late", n))
			if err := berthd.admitPod(b.Context(), pod, false); err != nil {
				b.Fatal(err)
			}
			var ms float64
			p.Eval(`window.seen`, &ms)
			sum += ms * 1e6
			if err := berthd.remove(b.Context(), pod.GetMetadata().GetUid()); err != nil {
				b.Fatal(err)
			}
			p.Until(fmt.Sprintf(`![...document.querySelectorAll('#pods td a')].some((x) => x.textContent.endsWith(%s.split('/')[1]))`,
				name))
			n++
		}
		b.ReportMetric(sum/float64(b.N), "shown-ns")
	})
}
