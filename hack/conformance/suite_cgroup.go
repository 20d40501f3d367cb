package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/workload"
)

// cgroupPods: a pod's class and the values of its cgroup.
var cgroupPods = Define("cgroup_pods", Plan[podCgroupIn, podCgroupWant, podCgroupGot]{
	Decide:  decidePodCgroup,
	Compare: comparePodCgroup,
	Earlier: podCgroupEarlier,
})

type podCgroupIn struct {
	Gates vector.Gates `json:"gates"`
	// Pod is not a vector.Pod: some amounts are refused.
	Pod                     json.RawMessage `json:"pod"`
	EnforceCPULimits        bool            `json:"enforce_cpu_limits"`
	CPUPeriodUS             uint64          `json:"cpu_period_us"`
	EnforceMemoryQoS        bool            `json:"enforce_memory_qos"`
	MemoryReservationPolicy string          `json:"memory_reservation_policy"`
}

type podCgroupWant struct {
	QoSClass string          `json:"qos_class"`
	Config   *podCgroupFiles `json:"config"`
	Panic    string          `json:"panic"`
}

// podCgroupFiles are the values of a pod's cgroup; nil where one is not set.
type podCgroupFiles struct {
	CPUShares      *uint64           `json:"cpu_shares"`
	CPUWeightV2    *uint64           `json:"cpu_weight_v2"`
	CPUQuotaUS     *int64            `json:"cpu_quota_us"`
	CPUPeriodUS    *uint64           `json:"cpu_period_us"`
	MemoryLimit    *int64            `json:"memory_limit"`
	HugePageLimits map[string]int64  `json:"hugepage_limits,omitempty"`
	Unified        map[string]string `json:"unified,omitempty"`
}

type podCgroupGot struct {
	QoSClass string          `json:"qos_class"`
	Config   *podCgroupFiles `json:"config"`
	Error    string          `json:"error,omitempty"`
}

func decidePodCgroup(_ *Env, in podCgroupIn) (podCgroupGot, error) {
	var pod vector.Pod
	if err := json.Unmarshal(in.Pod, &pod); err != nil {
		return podCgroupGot{Error: err.Error()}, nil
	}
	config := in.config()
	return podCgroupGot{QoSClass: string(pod.QoSClass(config.Features)), Config: in.files(pod.Pod, config)}, nil
}

// config is the configuration of a case. The reference computes values alike for both versions; memory QoS
// shows on v2 only.
func (in podCgroupIn) config() cgroup.Config {
	config := cgroup.DefaultConfig(cgroup.Facts{Version: cgroup.V2})
	config.Features.PodLevelResources = in.Gates.On(vector.PodLevelResources)
	config.PeriodUS = in.CPUPeriodUS
	config.DefaultQuotas = !in.Gates.On(vector.CustomCPUCFSQuotaPeriod)
	config.MemoryQoS = in.EnforceMemoryQoS
	config.ReservationPolicy = cgroup.ReservationPolicy(in.MemoryReservationPolicy)
	return config
}

// files are the values of a pod's cgroup.
func (in podCgroupIn) files(pod *workload.Pod, config cgroup.Config) *podCgroupFiles {
	values := cgroup.PodValues(pod, config, !in.EnforceCPULimits)
	files := podCgroupFiles{
		CPUShares:      values.CPUShares,
		CPUQuotaUS:     values.CPUQuotaUS,
		CPUPeriodUS:    values.CPUPeriodUS,
		MemoryLimit:    values.MemoryBytes,
		HugePageLimits: map[string]int64{},
		Unified:        values.Unified,
	}
	weight := cgroup.SharesToWeight(*values.CPUShares)
	files.CPUWeightV2 = &weight
	for size, bytes := range values.HugePages {
		files.HugePageLimits[strconv.FormatInt(size, 10)] = bytes
	}
	return &files
}

// podCgroupEarlier computes the values of a pod by the rules of kubelets before 1.37.
func podCgroupEarlier(_ *Env, in podCgroupIn, want podCgroupWant, got podCgroupGot) (string, error) {
	var pod vector.Pod
	if err := json.Unmarshal(in.Pod, &pod); err != nil {
		return "", err
	}
	config, entry := in.config(), initUnlimited
	if want.QoSClass != got.QoSClass {
		entry = emptyResources
		if pod.Resources == nil || pod.HasPodLevel() || want.QoSClass != string(workload.BestEffort) {
			return entry, errors.New("the pod has pod-level resources, or none at all")
		}
	}
	pod.QoS = workload.QoSClass(want.QoSClass)
	files := in.files(pod.Pod, config)
	if pod.QoS == workload.Burstable {
		limits := workload.EffectiveLimits(pod.Pod, config.Features)
		if files.CPUQuotaUS == nil && limitedWithSidecars(pod.Pod, workload.CPU) {
			quota := cgroup.Unlimited
			if in.EnforceCPULimits {
				quota = cgroup.QuotaFromMilliCPU(limits[workload.CPU], in.quotaPeriod())
			}
			files.CPUQuotaUS, files.CPUPeriodUS = &quota, &config.PeriodUS
		}
		if files.MemoryLimit == nil && limitedWithSidecars(pod.Pod, workload.Memory) {
			files.MemoryLimit = new(limits[workload.Memory])
		}
	}
	if older := (podCgroupGot{QoSClass: want.QoSClass, Config: files}); render(older.Config) != render(want.Config) {
		return entry, fmt.Errorf("by the older rules: %s", render(older))
	}
	return entry, nil
}

// quotaPeriod is the period that quotas are computed for.
func (in podCgroupIn) quotaPeriod() uint64 {
	if !in.Gates.On(vector.CustomCPUCFSQuotaPeriod) {
		return cgroup.DefaultPeriodUS
	}
	return in.CPUPeriodUS
}

// limitedWithSidecars reports whether every container is limited, where an ordinary init container counts as limited by
// the sidecars before it.
func limitedWithSidecars(pod *workload.Pod, r workload.Resource) bool {
	sidecars := false
	for _, c := range pod.Walk() {
		limited := c.Limits[r] != 0
		if c.Role == workload.Sidecar {
			sidecars = sidecars || limited
		}
		if !limited && (c.Role == workload.App || !sidecars) {
			return false
		}
	}
	return true
}

func comparePodCgroup(_ podCgroupIn, want podCgroupWant, got podCgroupGot) string {
	switch {
	case want.Panic != "":
		if got.Error == "" {
			return "the reference panicked, berth gave values instead of an error"
		}
		return ""
	case got.Error != "":
		return "error: " + got.Error
	case want.QoSClass != got.QoSClass:
		return "class"
	case render(want.Config) != render(got.Config):
		return "config"
	}
	return ""
}

// cgroupConversions: names and numbers.
var cgroupConversions = Define("cgroup_conversions", Plan[conversionIn, conversionWant, conversionGot]{
	Decide:  decideConversion,
	Compare: compareConversion,
})

type conversionIn struct {
	Gates vector.Gates   `json:"gates"`
	Op    string         `json:"op"`
	In    conversionArgs `json:"in"`
}

// conversionArgs is the union of what the conversions take; name is a list for
// some and a string for others.
type conversionArgs struct {
	MilliCPU      int64           `json:"milli_cpu"`
	PeriodUS      uint64          `json:"period_us"`
	QuotaUS       int64           `json:"quota_us"`
	Shares        uint64          `json:"shares"`
	Weight        uint64          `json:"weight"`
	Base          []string        `json:"base"`
	Components    []string        `json:"components"`
	Name          json.RawMessage `json:"name"`
	Path          string          `json:"path"`
	CgroupRoot    string          `json:"cgroup_root"`
	CgroupsPerQOS bool            `json:"cgroups_per_qos"`
	Driver        cgroup.Driver   `json:"driver"`
}

func (a conversionArgs) list() (cgroup.Name, error) {
	var name cgroup.Name
	return name, json.Unmarshal(a.Name, &name)
}

type conversionWant struct {
	Out   any    `json:"out"`
	Panic string `json:"panic"`
}

type conversionGot struct {
	Out   any    `json:"out"`
	Error string `json:"error,omitempty"`
}

// conversions calls the manager's function for each recorded operation.
var conversions = map[string]func(in conversionIn) (any, error){
	"milli_cpu_to_shares": func(in conversionIn) (any, error) { return cgroup.SharesFromMilliCPU(in.In.MilliCPU), nil },
	"milli_cpu_to_quota": func(in conversionIn) (any, error) {
		if !in.Gates.On(vector.CustomCPUCFSQuotaPeriod) {
			in.In.PeriodUS = cgroup.DefaultPeriodUS
		}
		return cgroup.QuotaFromMilliCPU(in.In.MilliCPU, in.In.PeriodUS), nil
	},
	"shares_to_milli_cpu": func(in conversionIn) (any, error) { return cgroup.MilliCPUFromShares(int64(in.In.Shares)), nil },
	"quota_to_milli_cpu": func(in conversionIn) (any, error) {
		return cgroup.MilliCPUFromQuota(in.In.QuotaUS, in.In.PeriodUS), nil
	},
	"shares_to_weight": func(in conversionIn) (any, error) { return cgroup.SharesToWeight(in.In.Shares), nil },
	"weight_to_shares": func(in conversionIn) (any, error) { return cgroup.WeightToShares(in.In.Weight), nil },
	"new_cgroup_name": func(in conversionIn) (any, error) {
		name, err := cgroup.NewName(in.In.Base, in.In.Components...)
		return name, err
	},
	"to_systemd": func(in conversionIn) (any, error) {
		name, err := in.In.list()
		if err != nil {
			return nil, err
		}
		return name.ToSystemd()
	},
	"to_cgroupfs": func(in conversionIn) (any, error) {
		name, err := in.In.list()
		return name.ToCgroupfs(), err
	},
	"parse_systemd":  func(in conversionIn) (any, error) { return cgroup.ParseSystemd(in.In.Path), nil },
	"parse_cgroupfs": func(in conversionIn) (any, error) { return cgroup.ParseCgroupfs(in.In.Path), nil },
	"node_allocatable_root": func(in conversionIn) (any, error) {
		layout, err := cgroup.NewLayout(in.In.CgroupRoot, in.In.Driver)
		if err != nil {
			return "", err
		}
		if in.In.CgroupsPerQOS {
			return layout.Literal(layout.Pods())
		}
		return layout.Literal(layout.Root())
	},
	"is_systemd_style": func(in conversionIn) (any, error) {
		var name string
		err := json.Unmarshal(in.In.Name, &name)
		return cgroup.IsSystemdStyle(name), err
	},
}

func decideConversion(_ *Env, in conversionIn) (conversionGot, error) {
	convert, ok := conversions[in.Op]
	if !ok {
		return conversionGot{}, fmt.Errorf("unknown operation %q, expected one of %q", in.Op, slices.Sorted(maps.Keys(conversions)))
	}
	out, err := convert(in)
	if err != nil {
		return conversionGot{Error: err.Error()}, nil
	}
	return conversionGot{Out: out}, nil
}

func compareConversion(_ conversionIn, want conversionWant, got conversionGot) string {
	switch {
	case want.Panic != "":
		if got.Error == "" {
			return "the reference panicked, berth gave a value instead of an error"
		}
		return ""
	case got.Error != "":
		return "error: " + got.Error
	}
	// Both sides as JSON has them, so that numbers and lists compare alike.
	w, g := render(want.Out), render(got.Out)
	if name, ok := got.Out.(cgroup.Name); ok && len(name) == 0 && (w == "[]" || w == "null") {
		return ""
	}
	if w != g {
		return "output"
	}
	return ""
}
