package app

import (
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/panel"
)

// inForce returns the managers that decide now.
func (a *App) inForce() *panel.Panel { return a.Seats.On(a.Ledger.View()) }

// managers returns who decides on a view.
func (a *App) managers(view *ledger.View) (admission.Bus, admission.Policy) {
	p := a.Seats.On(view)
	return p.Bus, p.Topology
}

// cpus is the CPU manager in force, for services that outlive it.
type cpus struct{ app *App }

// Describe implements hint.Describer.
func (c cpus) Describe() hint.Description { return c.app.inForce().CPU.Describe() }

// Allocatable returns the CPUs that may ever be given exclusively.
func (c cpus) Allocatable() cpuset.Set { return c.app.inForce().CPU.Allocatable() }
