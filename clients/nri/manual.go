package main

import (
	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/clients/berth"
)

// manualNotes are for the manual pages.
var manualNotes = manual.Notes{
	Exit: []manual.Entry{
		{Name: "0", Text: "Ended by SIGTERM or SIGINT, or a verb is done."},
		{Name: "1", Text: "An error, or a wrong command line."},
	},
	Environment: []manual.Entry{
		{Name: berth.EndpointVariable, Text: "The endpoint of berthd, if --endpoint is not given."},
		{Name: api.PluginSocketEnvVar + ", " + api.PluginIdxEnvVar, Text: "Set by a container runtime that starts berth-nri itself."},
		{Name: "KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT", Text: "Set in a pod: the address of the API server."},
	},
	Files: []manual.Entry{
		{Name: "/var/run/nri/nri.sock", Text: "The NRI socket of the container runtime."},
		{Name: "/var/run/secrets/kubernetes.io/serviceaccount", Text: "In a pod, the service account."},
	},
}
