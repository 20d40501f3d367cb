package main

import (
	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/clients/berth"
)

// manualNotes are for the manual pages.
var manualNotes = manual.Notes{
	Exit: []manual.Entry{
		{Name: "0", Text: "Ended by SIGTERM or SIGINT, or a verb is done."},
		{Name: "1", Text: "An error."},
		{Name: "2", Text: "A wrong command line."},
		{Name: "other", Text: "Of exec: that of the program, or 128 and the number of the signal that ended it."},
	},
	Environment: []manual.Entry{{Name: berth.EndpointVariable, Text: "The endpoint of berthd, if --endpoint is not given."}},
	Files: []manual.Entry{
		{Name: "/etc/berth/manifests", Text: "The manifests of the pods to run."},
		{Name: "/var/lib/berthlet", Text: "The state that berthlet needs after a restart, and the containers of its own runtime."},
		{Name: "/var/log/pods", Text: "The output of containers."},
	},
}
