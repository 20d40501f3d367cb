package main

import "github.com/berthd/berth/api/manual"

// manualNotes are for the manual pages.
var manualNotes = manual.Notes{
	Exit: []manual.Entry{
		{Name: "0", Text: "Ended by SIGTERM or SIGINT, or a verb is done."},
		{Name: "1", Text: "An error."},
		{Name: "2", Text: "A wrong command line."},
	},
	Environment: []manual.Entry{
		{Name: "GOMEMLIMIT, GOMAXPROCS", Text: "Limits of Go's runtime, in place of those that berthd sets for itself."},
		{Name: "NOTIFY_SOCKET, LISTEN_FDS, LISTEN_PID", Text: "Set by systemd: berthd tells when it is ready, and takes its sockets."},
	},
	Files: []manual.Entry{
		{Name: "/etc/berth/berthd.yaml", Text: "The configuration of the unit; see berthd.yaml(5)."},
		{Name: "/run/berth", Text: "Sockets and claim records. With --root-dir it is below that directory, as all that follow."},
		{Name: "/var/lib/berth/ledger.db", Text: "The admitted pods and what they hold."},
		{Name: "/var/lib/kubelet/device-plugins/kubelet.sock", Text: "Where device plugins register."},
		{Name: "/var/lib/kubelet/pod-resources/kubelet.sock", Text: "Where clients read podresources."},
	},
}
