package app

import (
	"strconv"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/server/metrics"
)

// settings are those of the moment that counting depends on.
func (a *App) settings() metrics.Settings {
	p := a.inForce()
	d := p.CPU.Describe()
	fullCores, _ := strconv.ParseBool(d.Options[cpu.FullPCPUsOnly])
	q := a.qos.Cgroup
	return metrics.Settings{
		StaticCPUs: d.Policy == cpu.PolicyStatic, FullCores: fullCores,
		Topology: p.Topology.Policy(), Scope: p.Topology.Scope(),
		PodLevelResourceManagers: a.Config.WorkloadFeatures().PodLevelResourceManagers,
		MemoryQoS:                q.MemoryQoS,
		TieredReservation:        q.MemoryQoS && q.Facts.Version == cgroup.V2 && q.ReservationPolicy == cgroup.ReserveTiered,
	}
}
