package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/clients/internal/table"
)

// maxSimilar is how many similar names an error shows.
const maxSimilar = 3

// similar returns the few pods, as namespace/name, whose names are near to what was typed.
func similar(typed string, pods []string) (near []string) {
	if typed == "" {
		return nil
	}
	commands := &cobra.Command{SuggestionsMinimumDistance: min(2, (len(typed)+1)/2)} // cobra knows which words are near
	for _, pod := range pods {
		name := pod
		if !strings.Contains(typed, "/") {
			_, name, _ = strings.Cut(pod, "/")
		}
		one := &cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}}
		commands.ResetCommands()
		commands.AddCommand(one)
		if len(commands.SuggestionsFor(typed)) > 0 && !slices.Contains(near, pod) {
			near = append(near, pod)
		}
	}
	slices.Sort(near)
	return near[:min(len(near), maxSimilar)]
}

// Similar adds to an error the pods, as namespace/name, whose names are near to the unknown one.
func (e *UnknownPodError) Similar(pods []string) *UnknownPodError {
	e.similar = similar(e.Pod, pods)
	return e
}

// hint leads on from an unknown pod.
func (e *UnknownPodError) hint() string {
	text := "'berthctl get pods' lists those that are admitted, 'berthctl get rejections' those that were not"
	if e.claim {
		text = "'berthctl get claims' lists those that are prepared, 'berthctl explain claim' the last decision about one"
	}
	if len(e.similar) > 0 {
		return table.Printable("is it "+strings.Join(e.similar, ", or ")+"? ") + text
	}
	return text
}
