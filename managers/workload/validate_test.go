package workload

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

func TestValidateAccepts(t *testing.T) {
	t.Parallel()
	full := q("cpu", 100, "memory", gi, "ephemeral-storage", 5, "hugepages-2Mi", 4*mi, "example.com/gpu", 1, "foo.kubernetes.io/x", 3)
	resized := podOf(nothing)
	resized.Containers[0].ResizePolicy = map[Resource]string{CPU: "RestartContainer", Memory: "NotRequired"}
	for name, pod := range map[string]*Pod{
		"smallest":             {UID: "8d3f0a1e-2b4c-4d5e-9f60-718293000004", Containers: []Container{{Name: "c"}}},
		"static pod's uid":     {UID: "0d1e5c3f2b4a69788796a5b4c3d2e1f0", Containers: []Container{{Name: "c"}}},
		"everything":           podOf(both(Init, full), both(Sidecar, full), both(App, full)).withOverhead(q("cpu", 5, "memory", 5)),
		"request below limit":  podOf(reqLim(App, q("cpu", 1, "foo.kubernetes.io/x", 1), q("cpu", 2, "foo.kubernetes.io/x", 3))),
		"zeros":                podOf(both(App, q("cpu", 0, "memory", 0, "hugepages-2Mi", 0, "example.com/gpu", 0))),
		"pod level":            podOf(both(App, q("cpu", 1))).withResources(q("cpu", 1), q("cpu", 2, "hugepages-1Gi", gi)),
		"pod level empty":      podOf(nothing).withResources(nil, nil),
		"init above pod limit": podOf(both(Init, q("cpu", 5)), nothing).withResources(q("cpu", 5), q("cpu", 5)),
		"resize policy":        resized,
	} {
		if err := Validate(pod, Bounds{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMetadataMayBe(t *testing.T) {
	t.Parallel()
	full := map[string]string{"a": strings.Repeat("x", MaxMetadata-1)}
	if vs := CheckMetadata(full, full); len(vs) > 0 {
		t.Error(vs)
	}
}

func TestValidateRefuses(t *testing.T) {
	t.Parallel()
	change := func(f func(*Pod)) *Pod {
		p := podOf(nothing)
		f(p)
		return p
	}
	long := strings.Repeat("x", 64)
	const c0 = "pod.spec.containers[0]"
	for _, row := range []struct {
		name string
		pod  *Pod
		want []string // "field: start of the description"
	}{
		{"no uid", change(func(p *Pod) { p.UID = "" }), []string{"pod.metadata.uid: is required"}},
		{"uid climbs", change(func(p *Pod) { p.UID = "../x" }), []string{`pod.metadata.uid: "../x": expected at most 128 letters`}},
		{"uid dots", change(func(p *Pod) { p.UID = ".." }), []string{"pod.metadata.uid: "}},
		{"uid slash", change(func(p *Pod) { p.UID = "a/b" }), []string{"pod.metadata.uid: "}},
		{"uid underscore", change(func(p *Pod) { p.UID = "a_b" }), []string{"pod.metadata.uid: "}},
		{"uid NUL", change(func(p *Pod) { p.UID = "a\x00b" }), []string{"pod.metadata.uid: "}},
		{"uid long", change(func(p *Pod) { p.UID = strings.Repeat("x", 129) }), []string{"pod.metadata.uid: "}},
		{"names", change(func(p *Pod) { p.Name, p.Namespace = "Web", "a.b" }),
			[]string{`pod.metadata.name: "Web": expected a DNS-1123 subdomain`,
				`pod.metadata.namespace: "a.b": expected a DNS-1123 label`}},
		{"long names", change(func(p *Pod) { p.Name, p.Namespace = strings.Repeat("x.", 126)+"xx", long }),
			[]string{"pod.metadata.name: ", "pod.metadata.namespace: "}},
		{"class", change(func(p *Pod) { p.QoS = "guaranteed" }),
			[]string{`pod.status.qosClass: "guaranteed": expected BestEffort, Burstable or Guaranteed`}},
		{"annotations", change(func(p *Pod) { p.Annotations = map[string]string{"ab": strings.Repeat("x", MaxMetadata-1)} }),
			[]string{"pod.metadata.annotations: 262145 bytes are more than the 262144 that are allowed"}},
		{"labels", change(func(p *Pod) {
			p.Labels = map[string]string{"a": strings.Repeat("x", MaxMetadata/2), "b": strings.Repeat("x", MaxMetadata/2)}
		}), []string{"pod.metadata.labels: 262146 bytes are more"}},
		{"priority class", change(func(p *Pod) { p.PriorityClassName = long + "." + strings.Repeat("x", 1<<20) }),
			[]string{"pod.spec.priorityClassName: "}},
		{"restart policy", change(func(p *Pod) { p.RestartPolicy = "always" }),
			[]string{`pod.spec.restartPolicy: "always": expected Always`}},
		{"no containers", podOf(), []string{"pod.spec.containers: is required"}},
		{"only init", podOf(Container{Role: Init}), []string{"pod.spec.containers: is required"}},
		{"init after app", podOf(nothing, Container{Role: Init}), []string{"pod.spec.initContainers[0]: stands after an app container"}},
		{"sidecar after app", podOf(nothing, Container{Role: Sidecar}),
			[]string{"pod.spec.initContainers[0]: stands after an app container"}},
		{"role", podOf(Container{Role: 9}, nothing), []string{"pod.spec.initContainers[0]: role(9) is unknown"}},
		{"container names", change(func(p *Pod) {
			p.Containers = []Container{{Name: "a", Role: Init}, {Name: "a"}, {Name: ""}, {Name: "A"}, {Name: long}, {Name: "-a"}}
		}), []string{c0 + `.name: "a" is the name of pod.spec.initContainers[0] already`, "pod.spec.containers[1].name: is required",
			`pod.spec.containers[2].name: "A": expected a DNS-1123 label`, "pod.spec.containers[3].name: ",
			"pod.spec.containers[4].name: "}},
		{"negative", podOf(both(App, q("cpu", -1))), []string{c0 + `.resources.limits["cpu"]: -1m must not be negative`,
			c0 + `.resources.requests["cpu"]: -1m must not be negative`}},
		{"request above limit", podOf(nothing, reqLim(App, q("cpu", 2, "memory", 2), q("cpu", 1, "memory", 1))),
			[]string{`pod.spec.containers[1].resources.requests["cpu"]: 2m must not be above the limit, 1m`,
				`pod.spec.containers[1].resources.requests["memory"]: 2 must not`}},
		{"device request below limit", podOf(reqLim(App, q("example.com/gpu", 1), q("example.com/gpu", 2))),
			[]string{c0 + `.resources.requests["example.com/gpu"]: 1 must be equal to the limit, 2`}},
		{"device request without limit", podOf(reqLim(App, q("example.com/gpu", 1), nil)),
			[]string{c0 + `.resources.limits["example.com/gpu"]: is required`}},
		{"huge page request below limit", podOf(reqLim(App, q("hugepages-2Mi", 2*mi), q("hugepages-2Mi", 4*mi))),
			[]string{c0 + `.resources.requests["hugepages-2Mi"]: 2Mi must be equal to the limit, 4Mi`}},
		{"huge page request without limit", podOf(reqLim(App, q("hugepages-2Mi", 2*mi), nil)),
			[]string{c0 + `.resources.limits["hugepages-2Mi"]: is required`}},
		{"part of a huge page", podOf(reqLim(App, nil, q("hugepages-1Gi", 3*mi))),
			[]string{c0 + `.resources.limits["hugepages-1Gi"]: 3145728 bytes are not a whole number of pages of 1073741824 bytes`}},
		{"resource names", podOf(reqLim(App, nil, q("gpu", 1, "storage", 1, "hugepages-", 1, "a/b/c", 1, "requests.a/b", 1, `a"]/b`, 1,
			"kubernetes.io/", 1))), []string{
			c0 + `.resources.limits["a\"]/b"]: `, c0 + `.resources.limits["a/b/c"]: "a/b/c" is not a resource name`,
			c0 + `.resources.limits["gpu"]: `,
			c0 + `.resources.limits["hugepages-"]: `, c0 + `.resources.limits["kubernetes.io/"]: `,
			c0 + `.resources.limits["requests.a/b"]: `, c0 + `.resources.limits["storage"]: `}},
		{"overhead", podOf(nothing).withOverhead(q("cpu", -1, "pods", 1)),
			[]string{`pod.spec.overhead["cpu"]: -1m must not be negative`, `pod.spec.overhead["pods"]: `}},
		{"resize policy", change(func(p *Pod) {
			p.RestartPolicy = "Never"
			p.Containers[0].ResizePolicy = map[Resource]string{"cpu": "RestartContainer", "memory": "", "example.com/gpu": "NotRequired"}
		}), []string{c0 + `.resizePolicy["cpu"]: RestartContainer contradicts`,
			c0 + `.resizePolicy["example.com/gpu"]: only cpu and memory`, c0 + `.resizePolicy["memory"]: "": expected NotRequired`}},
		{"pod-level names", podOf(nothing).withResources(nil, q("example.com/gpu", 1, "ephemeral-storage", 1, "hugepages-x", 1)), []string{
			`pod.spec.resources.limits["ephemeral-storage"]: `, `pod.spec.resources.limits["example.com/gpu"]: `,
			`pod.spec.resources.limits["hugepages-x"]: `}},
		{"pod-level request above limit", podOf(nothing).withResources(q("cpu", 2), q("cpu", 1)),
			[]string{`pod.spec.resources.requests["cpu"]: 2m must not be above the limit, 1m`}},
		{"pod-level request too small", podOf(both(App, q("cpu", 2)), both(App, q("cpu", 2))).withResources(q("cpu", 3), q("cpu", 9)),
			[]string{`pod.spec.resources.requests["cpu"]: 3 is below the containers' total of 4`}},
		{"pod-level limit too small", podOf(nothing, both(App, q("cpu", 3))).withResources(nil, q("cpu", 2)),
			[]string{`pod.spec.containers[1].resources.limits["cpu"]: 3 is above the pod-level limit, 2`}},
		{"pod-level huge page limit too small", podOf(both(App, q("hugepages-2Mi", 2*mi)),
			both(App, q("hugepages-2Mi", 2*mi))).withResources(nil, q("hugepages-2Mi", 2*mi)),
			[]string{`pod.spec.resources.limits["hugepages-2Mi"]: 2097152 is below the containers' total of 4194304`}},
		{"part of a device", change(func(p *Pod) {
			p.Containers[0].Limits, p.Containers[0].Excess = q("example.com/gpu", 2), &Excess{Limits: q("example.com/gpu", billion/2)}
		}), []string{c0 + `.resources.limits["example.com/gpu"]: must be a whole number`}},
		{"request above limit by a fraction", change(func(p *Pod) {
			p.Containers[0], p.Containers[0].Name = both(App, q("memory", 2)), "a"
			p.Containers[0].Excess = &Excess{Limits: q("memory", 1)}
		}), []string{c0 + `.resources.requests["memory"]: 2 must not be above the limit, 2`}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			err := Validate(row.pod, Bounds{})
			var e *errdefs.Error
			if !errors.As(err, &e) || e.Class != errdefs.Invalid {
				t.Fatalf("got %v, want an error of class invalid", err)
			}
			if !slices.EqualFunc(e.Fields, row.want, func(v errdefs.Violation,
				want string) bool {
				return strings.HasPrefix(v.String(), want)
			}) {
				t.Errorf("got %q\nwant %q", e.Fields, row.want)
			}
		})
	}
}

func TestValidateBoundsContainers(t *testing.T) {
	t.Parallel()
	many := podOf(make([]Container, 1001)...)
	if err := Validate(many, Bounds{}); err == nil || !strings.Contains(err.Error(),
		"pod.spec.containers: 1001 containers are more than the 1000") {
		t.Errorf("1001 containers: %v", err)
	}
	if err := Validate(many, Bounds{Containers: 1001}); err != nil && strings.Contains(err.Error(), "more than") {
		t.Errorf("1001 containers where 1001 are allowed: %v", err)
	}
	if err := Validate(podOf(nothing, nothing), Bounds{Containers: 1}); err == nil {
		t.Error("two containers where one is allowed")
	}
}

func TestValidateNamesThePod(t *testing.T) {
	t.Parallel()
	p := podOf()
	if got, want := Validate(p, Bounds{}).Error(),
		`pod default/web (u1) is invalid: pod.spec.containers: is required: a pod has at least one app container`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	p.UID, p.Name = strings.Repeat("\x00", 1<<20), ""
	if got := len(Validate(p, Bounds{}).Error()); got > 2000 {
		t.Errorf("a uid of a megabyte gives a message of %d bytes", got)
	}
}
