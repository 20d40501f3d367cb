package main

import (
	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/clients/berth"
)

// manualNotes are for the manual pages.
var manualNotes = manual.Notes{
	Exit: []manual.Entry{
		{Name: "0", Text: "Done."},
		{Name: "1", Text: "An error; of check: only warnings."},
		{Name: "2", Text: "A wrong command line."},
		{Name: "3", Text: "A pod was rejected, or does not fit now, or the kernel gave other huge pages than requested; of check: an error of the node."},
		{Name: "4", Text: "A pod was deferred, and none was rejected."},
		{Name: "130", Text: "The command was interrupted before it was done."},
	},
	Environment: []manual.Entry{
		{Name: berth.EndpointVariable, Text: "The endpoint of berthd, if --endpoint is not given."},
		{Name: "NO_COLOR", Text: "If it is set, --color auto has no colors."},
	},
	Files: []manual.Entry{
		{Name: berth.DefaultEndpoint, Text: "The socket of berthd, if neither --endpoint nor the environment names one."},
		{Name: "/usr/share/doc/berth", Text: "The documentation."},
	},
}
