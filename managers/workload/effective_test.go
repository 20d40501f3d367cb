package workload

import (
	"math"
	"reflect"
	"testing"
)

// TestWorkedPods runs 25 pods whose class and cgroup values were measured with Kubernetes 1.36.3. milli is the CPU request
// behind cpu.shares; limits are what the pod's cgroup gets, 0 where it gets none.
func TestWorkedPods(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name           string
		pod            *Pod
		class          QoSClass
		milli, memory  int64 // requests
		cpuMax, memMax int64 // limits in force
		huge           Quantities
	}{
		{name: "01 equal", pod: podOf(both(App, q("cpu", 2000, "memory", 4*gi))),
			class: Guaranteed, milli: 2000, memory: 4 * gi, cpuMax: 2000, memMax: 4 * gi},
		{name: "02 two equal", pod: podOf(both(App, q("cpu", 1500, "memory", gi)), both(App, q("cpu", 255, "memory", 512*mi))),
			class: Guaranteed, milli: 1755, memory: 1536 * mi, cpuMax: 1755, memMax: 1536 * mi},
		{name: "03 tiny", pod: podOf(both(App, q("cpu", 5, "memory", 16*mi))),
			class: Guaranteed, milli: 5, memory: 16 * mi, cpuMax: 5, memMax: 16 * mi},
		{name: "04 no limits", pod: podOf(reqLim(App, q("cpu", 500, "memory", 256*mi), nil)),
			class: Burstable, milli: 500, memory: 256 * mi},
		{name: "05 limits above", pod: podOf(reqLim(App, q("cpu", 250, "memory", 128*mi), q("cpu", 1000, "memory", 512*mi))),
			class: Burstable, milli: 250, memory: 128 * mi, cpuMax: 1000, memMax: 512 * mi},
		{name: "06 one unlimited", pod: podOf(reqLim(App, q("cpu", 250, "memory", 128*mi), q("cpu", 1000, "memory", 512*mi)), nothing),
			class: Burstable, milli: 250, memory: 128 * mi},
		{name: "07 memory limit only", pod: podOf(reqLim(App, q("cpu", 100, "memory", 64*mi), q("memory", 128*mi))),
			class: Burstable, milli: 100, memory: 64 * mi, memMax: 128 * mi},
		{name: "08 nothing", pod: podOf(nothing), class: BestEffort},
		{name: "09 only overhead", pod: podOf(nothing).withOverhead(q("cpu", 250, "memory", 120*mi)),
			class: BestEffort, milli: 250, memory: 120 * mi},
		{name: "10 huge pages", pod: podOf(reqLim(App, q("cpu", 100, "memory", 128*mi, "hugepages-2Mi", 64*mi),
			q("memory", 256*mi, "hugepages-2Mi", 64*mi))),
			class: Burstable, milli: 100, memory: 128 * mi, memMax: 256 * mi, huge: q("hugepages-2Mi", 64*mi)},
		{name: "11 two page sizes", pod: podOf(both(App, q("cpu", 1000, "memory", gi, "hugepages-2Mi", 128*mi, "hugepages-1Gi", gi))),
			class: Guaranteed, milli: 1000, memory: gi, cpuMax: 1000, memMax: gi, huge: q("hugepages-2Mi", 128*mi, "hugepages-1Gi", gi)},
		{name: "12 overhead on limits", pod: podOf(both(App, q("cpu", 1000, "memory", gi))).withOverhead(q("cpu", 250, "memory", 120*mi)),
			class: Guaranteed, milli: 1250, memory: gi + 120*mi, cpuMax: 1250, memMax: 1199570944},
		{name: "13 larger init", pod: podOf(both(Init, q("cpu", 2000, "memory", gi)), both(App, q("cpu", 500, "memory", 256*mi))),
			class: Guaranteed, milli: 2000, memory: gi, cpuMax: 2000, memMax: gi},
		{name: "14 sidecar before init", pod: podOf(both(Sidecar, q("cpu", 200, "memory", 128*mi)),
			both(Init, q("cpu", 1000, "memory", 512*mi)), both(App, q("cpu", 500, "memory", 256*mi))),
			class: Guaranteed, milli: 1200, memory: 640 * mi, cpuMax: 1200, memMax: 671088640},
		{name: "15 unlimited init", pod: podOf(reqLim(Init, q("cpu", 50), nil),
			reqLim(App, q("cpu", 500, "memory", 256*mi), q("cpu", 1000, "memory", 512*mi))),
			class: Burstable, milli: 500, memory: 256 * mi},
		{name: "16 pod level only", pod: podOf(nothing, nothing).withResources(q("cpu", 2000, "memory", 2*gi),
			q("cpu", 2000, "memory", 2*gi)),
			class: Guaranteed, milli: 2000, memory: 2 * gi, cpuMax: 2000, memMax: 2 * gi},
		{name: "17 pod level over containers", pod: podOf(reqLim(App, q("cpu", 500, "memory", 512*mi), nil),
			nothing).withResources(q("cpu", 1000, "memory", gi), q("cpu", 2000, "memory", 2*gi)),
			class: Burstable, milli: 1000, memory: gi, cpuMax: 2000, memMax: 2 * gi},
		{name: "18 mixed levels", pod: podOf(reqLim(App, q("memory", 128*mi), q("memory", 256*mi))).withResources(q("cpu", 500),
			q("cpu", 1000)),
			class: Burstable, milli: 500, memory: 128 * mi, cpuMax: 1000, memMax: 256 * mi},
		{name: "19 many CPUs", pod: podOf(both(App, q("cpu", 300000, "memory", 16*gi))),
			class: Guaranteed, milli: 300000, memory: 16 * gi, cpuMax: 300000, memMax: 16 * gi},
		{name: "20 one milli", pod: podOf(reqLim(App, q("cpu", 1, "memory", 64*mi), q("cpu", 1, "memory", 128*mi))),
			class: Burstable, milli: 1, memory: 64 * mi, cpuMax: 1, memMax: 128 * mi},
		{name: "21 pod level huge pages", pod: podOf(both(App, q("memory", 64*mi, "hugepages-2Mi", 64*mi))).withResources(
			q("cpu", 1000, "memory", gi, "hugepages-2Mi", 256*mi), q("cpu", 1000, "memory", gi, "hugepages-2Mi", 256*mi)),
			class: Guaranteed, milli: 1000, memory: gi, cpuMax: 1000, memMax: gi, huge: q("hugepages-2Mi", 256*mi)},
		{name: "22 unlimited sidecar", pod: podOf(reqLim(Sidecar, q("cpu", 100, "memory", 64*mi), nil),
			reqLim(App, q("cpu", 500, "memory", 256*mi), q("cpu", 1000, "memory", 512*mi))),
			class: Burstable, milli: 600, memory: 320 * mi},
		{name: "23 unlimited init after limited sidecar", pod: podOf(reqLim(Sidecar, q("cpu", 100, "memory", 64*mi),
			q("cpu", 200, "memory", 128*mi)), Container{Role: Init},
			reqLim(App, q("cpu", 500, "memory", 256*mi), q("cpu", 1000, "memory", 512*mi))),
			class: Burstable, milli: 600, memory: 320 * mi},
		{name: "24 only ephemeral storage", pod: podOf(reqLim(App, q("ephemeral-storage", gi), q("ephemeral-storage", 2*gi))),
			class: BestEffort},
		{name: "25 overhead needs a limit", pod: podOf(reqLim(App, q("cpu", 100, "memory", 64*mi),
			q("cpu", 500))).withOverhead(q("cpu", 250, "memory", 120*mi)),
			class: Burstable, milli: 350, memory: 192937984, cpuMax: 750},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := row.pod.QoSClass(on); got != row.class {
				t.Errorf("class %s, want %s", got, row.class)
			}
			requests, limits, declared := EffectiveRequests(row.pod, on), EffectiveLimits(row.pod, on), DeclaredLimits(row.pod, on)
			if requests[CPU] != row.milli || requests[Memory] != row.memory {
				t.Errorf("requests %d milli-CPU, %d bytes; want %d, %d", requests[CPU], requests[Memory], row.milli, row.memory)
			}
			if !declared.CPU {
				limits[CPU] = 0
			}
			if !declared.Memory {
				limits[Memory] = 0
			}
			if limits[CPU] != row.cpuMax || limits[Memory] != row.memMax {
				t.Errorf("limits %d milli-CPU, %d bytes (declared %+v); want %d, %d", limits[CPU], limits[Memory], declared, row.cpuMax,
					row.memMax)
			}
			huge := Quantities{}
			for r, amount := range requests {
				if r.IsHugePages() {
					huge[r] = amount
				}
			}
			if want := row.huge; len(huge)+len(want) > 0 && !reflect.DeepEqual(huge, want) {
				t.Errorf("huge pages %v, want %v", huge, want)
			}
		})
	}
}

func TestPodLevelNeedsItsFeature(t *testing.T) {
	t.Parallel()
	p := podOf(both(App, q("cpu", 1000, "memory", gi))).withResources(q("cpu", 4000), q("cpu", 8000))
	if got := EffectiveRequests(p, off)[CPU]; got != 1000 {
		t.Errorf("request %d with the feature off, want the container's 1000", got)
	}
	if got := EffectiveLimits(p, off)[CPU]; got != 1000 {
		t.Errorf("limit %d with the feature off, want the container's 1000", got)
	}
	if got := EffectiveLimits(p, on)[CPU]; got != 8000 {
		t.Errorf("limit %d with the feature on, want the pod's 8000", got)
	}
}

func TestPodLevelIgnoresOtherResources(t *testing.T) {
	t.Parallel()
	p := podOf(both(App, q("example.com/gpu", 2))).withResources(q("example.com/gpu", 9), q("ephemeral-storage", 9))
	if got, want := EffectiveRequests(p, on), q("example.com/gpu", 2); !reflect.DeepEqual(got, want) {
		t.Errorf("requests %v, want %v", got, want)
	}
	if p.HasPodLevel() {
		t.Error("a pod with unsupported pod-level names only counts as one with pod-level resources")
	}
	if !p.withResources(nil, q("hugepages-2Mi", 0)).HasPodLevel() {
		t.Error("a huge page limit of 0 at pod level does not count")
	}
}

// A request that is absent stays absent in the total, and a request for zero stays zero.
func TestAbsentIsNotZero(t *testing.T) {
	t.Parallel()
	p := podOf(reqLim(Init, q("memory", 0), nil), nothing)
	if got, want := EffectiveRequests(p, on), q("memory", 0); !reflect.DeepEqual(got, want) {
		t.Errorf("requests %v, want %v", got, want)
	}
}

func TestTotalsSaturate(t *testing.T) {
	t.Parallel()
	p := podOf(both(App, q("memory", math.MaxInt64)), both(App, q("memory", math.MaxInt64)), both(Sidecar, q("memory", 1)))
	if got := EffectiveRequests(p, on)[Memory]; got != math.MaxInt64 {
		t.Errorf("sum of absurd requests is %d", got)
	}
}

// Kubernetes adds exact quantities and rounds the sum: 1.5 + 1.5 bytes are 3 bytes, not 4.
func TestTotalsAreExact(t *testing.T) {
	t.Parallel()
	half := func(role Role) Container {
		return Container{Role: role, Requests: q("memory", 2), Limits: q("memory", 2),
			Excess: &Excess{Requests: q("memory", billion/2), Limits: q("memory", billion/2)}}
	}
	for _, row := range []struct {
		name string
		pod  *Pod
		want int64
	}{
		{"one", podOf(half(App)), 2},
		{"two", podOf(half(App), half(App)), 3},
		{"three", podOf(half(App), half(Sidecar), half(App)), 5},
		{"init and sidecar", podOf(half(Sidecar), half(Init), nothing), 3},
		{"overhead", podOf(half(App)).withOverhead(q("memory", 1)), 3},
	} {
		if got := EffectiveRequests(row.pod, on)[Memory]; got != row.want {
			t.Errorf("%s: requests %d, want %d", row.name, got, row.want)
		}
		if got := EffectiveLimits(row.pod, on)[Memory]; got != row.want {
			t.Errorf("%s: limits %d, want %d", row.name, got, row.want)
		}
	}
	p := podOf(half(App)).withOverhead(q("memory", 2))
	p.Excess = &Excess{Overhead: q("memory", billion/2)}
	if got := EffectiveRequests(p, on)[Memory]; got != 3 {
		t.Errorf("1.5 bytes with 1.5 bytes of overhead: %d, want 3", got)
	}
}
