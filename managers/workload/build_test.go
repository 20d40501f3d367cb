package workload

import "strings"

// Shapes of test pods. q("cpu", 2000, "memory", 1) spells quantities in one line.

const (
	mi = 1 << 20
	gi = 1 << 30
)

func q(pairs ...any) Quantities {
	amounts := Quantities{}
	for i := 0; i < len(pairs); i += 2 {
		amounts[Resource(pairs[i].(string))] = int64(pairs[i+1].(int))
	}
	return amounts
}

// both gives a container whose requests equal its limits.
func both(role Role, amounts Quantities) Container {
	return Container{Role: role, Requests: amounts, Limits: amounts}
}

func reqLim(role Role, requests, limits Quantities) Container {
	return Container{Role: role, Requests: requests, Limits: limits}
}

// podOf names the containers a, b, c, ... in order.
func podOf(containers ...Container) *Pod {
	for i := range containers {
		containers[i].Name = strings.Repeat("z", i/26) + string(rune('a'+i%26))
	}
	return &Pod{UID: "u1", Namespace: "default", Name: "web", Containers: containers}
}

func (p *Pod) withOverhead(amounts Quantities) *Pod { p.Overhead = amounts; return p }

func (p *Pod) withResources(requests, limits Quantities) *Pod {
	p.Resources = &Resources{Requests: requests, Limits: limits}
	return p
}

var (
	off     = Features{}
	on      = Features{PodLevelResources: true}
	nothing = Container{}
)
