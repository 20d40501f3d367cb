package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/clients/berthlet/lifecycle"
	"github.com/berthd/berth/clients/internal/table"
)

func statusFile(state string) string { return filepath.Join(state, "status.json") }

// statusCommand shows what the agent wrote last, so it also works while no
// berthlet runs.
func statusCommand(state *string) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "status", Short: "Show the pods", Args: cobra.NoArgs, DisableFlagsInUseLine: true,
		Long:    "Show the pods from the last status that berthlet wrote. It works while berthlet is stopped, too.",
		Example: "  berthlet status\n  berthlet status -o json | jq -r '.pods[] | select(.phase == \"Failed\") | .message'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := trust.CheckFlags(cmd.Flags()); err != nil {
				return err
			}
			s, text, err := readStatus(*state)
			if err != nil {
				return err
			}
			switch format {
			case "json":
				_, err = cmd.OutOrStdout().Write(text)
			case "table":
				fmt.Fprint(cmd.OutOrStdout(), show(s, time.Now()))
			default:
				err = fmt.Errorf("--output %q: expected table or json", format)
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table or json")
	return cmd
}

// maxStatus bounds the status of all pods.
const maxStatus = 64 << 20

// readStatus reads what the agent wrote last, and gives the file as well.
func readStatus(state string) (s agent.Status, text []byte, err error) {
	text, err = trust.ReadFile(statusFile(state), maxStatus)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil, fmt.Errorf("no berthlet has run with the state directory %s yet", state)
	case errors.Is(err, fs.ErrPermission):
		return s, nil, fmt.Errorf("%w: what berthlet keeps is root's alone, so run this as root", err)
	case err != nil:
		return s, nil, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, nil, fmt.Errorf("read %s: %w", statusFile(state), err)
	}
	return s, text, nil
}

// show makes a table of the pods, as kubectl get pods has it.
func show(s agent.Status, now time.Time) *table.Table {
	t := table.New("NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "MESSAGE")
	for _, p := range s.Pods {
		ready, all := p.Ready()
		age := ""
		if p.StartTime != nil {
			age = table.Age(now.Sub(*p.StartTime))
		}
		word, message := summary(p)
		t.Row(p.Namespace, p.Name, fmt.Sprintf("%d/%d", ready, all), word, strconv.Itoa(p.Restarts()), age, message)
	}
	for _, u := range s.Unreadable {
		t.Row("", u.File, "", "Unreadable", "", "", u.Error)
	}
	return t
}

// summary returns the state of a pod in one word, and a sentence with details.
func summary(p agent.PodStatus) (word, message string) {
	switch {
	case p.DeletionTimestamp != nil:
		return "Terminating", p.Message
	case p.Reason != "":
		return p.Reason, p.Message
	}
	// The first container that waits for a reason of its own.
	for _, c := range slices.Concat(p.InitContainerStatuses, p.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != lifecycle.WaitsForInit {
			return w.Reason, w.Message
		}
	}
	if p.Phase == string(lifecycle.Succeeded) {
		return "Completed", p.Message
	}
	return p.Phase, p.Message
}
