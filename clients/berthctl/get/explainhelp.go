package get

import (
	"fmt"
	"io"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

// ExplainHelp prints the changes that would make a rejected pod fit, each with the commands or the lines that make it.
func ExplainHelp(w io.Writer, t *typesv1.Trace) {
	list := t.GetSuggestions()
	if len(list) == 0 && t.GetTried() > 0 {
		fmt.Fprintf(w, "\nno smaller request, other policy or removal of pods was found to help (%s)\n",
			table.Count(int(t.GetTried()), "dry run"))
	}
	for i, s := range list {
		if i == 0 {
			fmt.Fprint(w, "\nit would fit\n")
		}
		or := ", or"
		if i == len(list)-1 {
			or = ""
		}
		fmt.Fprintf(w, "  %s%s\n", command.OneLine(s.GetText()), or)
		for _, line := range s.GetHow() {
			fmt.Fprintf(w, "    %s\n", command.OneLine(line))
		}
	}
}
