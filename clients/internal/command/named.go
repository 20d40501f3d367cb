package command

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/trust"
)

// flagKinds says what flags name, by their names. What a person names for one call is read within bounds, as standard
// input is. A program and a socket must be trusted: berthctl runs the one and believes the other.
var flagKinds = map[string]trust.Kind{
	"berthd": trust.File, "endpoint": trust.Socket, "socket": trust.Socket,
	"filename": trust.Input, "pods": trust.Input, "containers": trust.Input, "for": trust.Input, "more": trust.Input,
	"bundle": trust.Input, "ledger": trust.Input, "machine": trust.Input, "config": trust.Input, "kubelet-config": trust.Input,
	"devices": trust.Input, "kubelet": trust.Input, "configz": trust.Input,
	"export": trust.Output, "junit": trust.Output,
}

// flagKindsOf are the exceptions, by command.
var flagKindsOf = map[string]map[string]trust.Kind{
	"berthctl bundle":        {"output": trust.Output},
	"berthctl ledger export": {"filename": trust.Output},
}

// MarkFlags says of all flags of a command and of those below what they name.
func MarkFlags(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		kind, ok := flagKindsOf[cmd.CommandPath()][f.Name]
		if !ok {
			kind, ok = flagKinds[f.Name]
		}
		if ok {
			trust.Mark(cmd.LocalFlags(), kind, f.Name)
		}
	})
	for _, sub := range cmd.Commands() {
		MarkFlags(sub)
	}
}
