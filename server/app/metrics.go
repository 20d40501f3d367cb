package app

import (
	"strconv"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/server/metrics"
)

// settings are those of the moment that counting depends on.
func (a *App) settings() metrics.Settings {
	p := a.inForce()
	d := p.CPU.Describe()
	fullCores, _ := strconv.ParseBool(d.Options[cpu.FullPCPUsOnly])
	return metrics.Settings{
		StaticCPUs: d.Policy == cpu.PolicyStatic, FullCores: fullCores,
		Topology: p.Topology.Policy(), Scope: p.Topology.Scope(),
		PodLevelResourceManagers: a.Config.WorkloadFeatures().PodLevelResourceManagers,
	}
}
