package simulate

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const bundleLong = `Write one file from which berthd's decisions can be computed again. 'replay', 'map' and 'simulate' open it. It has the
machine, the configuration, the devices, the pods with their allocations, the history, versions and metrics. It needs the
role admin. While berthd is down, --ledger takes pods and history from its ledger file; add --machine and --config.

The file is a tar archive, compressed with gzip, of JSON and text. Only its owner can read it. It has no answers of
plugins, no environment, and no annotations that berth does not use.

--mask replaces the names of pods, namespaces, containers, users, processes, agents, devices and ids by invented ones, the
same for the same name, and leaves out labels, messages, metrics, host name and paths. A replay gives the same verdicts. Names of
resources stay, and so do times and amounts.`

const bundleExample = `  berthctl bundle
  berthctl bundle -o incident.tar.gz --mask
  berthctl bundle --ledger /var/lib/berth/ledger.db --machine machine.json --config berth.yaml
  tar -xzOf incident.tar.gz history.jsonl | jq .entry.verdict`

// bundle's flags.
type bundleFlags struct {
	sceneFlags
	file, ledger string
	mask         bool
}

func Bundle(c *command.Ctl) *cobra.Command {
	var f bundleFlags
	cmd := c.Local(command.About{
		Use:   "bundle [-o FILE] [--mask] [--ledger FILE]",
		Short: "Write machine, configuration, pods and history into a file",
		Long:  bundleLong, Example: bundleExample,
	}, func(ctx context.Context, _ []string) error {
		b, err := f.collect(ctx, c)
		if err != nil {
			return err
		}
		if f.mask {
			if err := b.Mask(); err != nil {
				return err
			}
		}
		path := f.file
		if path == "" {
			path = "berth-" + b.About.Time.Format("20060102T150405Z") + ".tar.gz"
		}
		if err := b.WriteFile(path); err != nil {
			return err
		}
		return c.Say(func(w io.Writer) {
			fmt.Fprintf(w, "wrote %s: %s, %s", command.OneLine(path), table.Count(len(b.State.Pods), "pod"), entryCount(len(b.History)))
			if f.mask {
				fmt.Fprint(w, ", masked")
			}
			fmt.Fprintln(w)
			for _, m := range b.About.Missing {
				fmt.Fprintf(w, "not in it: %s\n", command.OneLine(m))
			}
		})
	})
	fs := cmd.Flags()
	// It takes the place of the format, which this verb has none of.
	fs.StringVarP(&f.file, "output", "o", "", "file to write (default berth-TIME.tar.gz in the current directory)")
	fs.BoolVar(&f.mask, "mask", false, "replace names by made ones")
	fs.StringVar(&f.ledger, "ledger", "", "ledger file to read instead of a call to berthd")
	fs.StringVar(&f.machine, "machine", "", "with --ledger: snapshot file or shape of its machine")
	fs.StringVar(&f.config, "config", "", "with --ledger: berth's own configuration file")
	fs.StringVar(&f.kubelet, "kubelet-config", "", "with --ledger: a kubelet's configuration file")
	return cmd
}

// collect reads what berthd or a ledger file has.
func (f *bundleFlags) collect(ctx context.Context, c *command.Ctl) (b *bundle.Bundle, err error) {
	if f.ledger != "" {
		b, err = f.offline(ctx, c)
	} else {
		if f.machine != "" || f.config != "" || f.kubelet != "" {
			return nil, command.Usagef("bundle", "--machine, --config and --kubelet-config are for --ledger: berthd has its own")
		}
		err = c.Connected(ctx, func(ctx context.Context, s *command.Session) (err error) {
			b, err = bundle.Collect(s.Bundle(ctx))
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	b.About.Format, b.About.Berthctl = bundle.Format, version.Of().Version
	return b, nil
}

// offline reads a ledger file.
func (f *bundleFlags) offline(ctx context.Context, c *command.Ctl) (b *bundle.Bundle, err error) {
	about := bundle.About{Time: c.Now().UTC()}
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		about.Kernel = strings.TrimSpace(string(kernel))
	}
	out := bundle.Bundle{}
	if f.machine != "" {
		if out.Machine, err = findMachine(ctx, f.machine); err != nil {
			return nil, err
		}
	} else {
		about.Missing = append(about.Missing, bundle.MachinePart+": --machine was not given")
	}
	if f.config != "" || f.kubelet != "" {
		cfg, err := f.configuration(ctx, c, nil)
		if err != nil {
			return nil, err
		}
		out.Config = &cfg
	} else {
		about.Missing = append(about.Missing, bundle.ConfigPart+": --config was not given")
	}
	if b, err = readLedger(ctx, c, f.ledger, out.Machine); err != nil {
		return nil, err
	}
	if out.Machine != nil && out.Machine.Fingerprint() != b.State.Machine {
		return nil, fmt.Errorf("--machine %s: %s was written on another machine", f.machine, f.ledger)
	}
	about.Missing = append(about.Missing, bundle.DevicesPart+": only a running berthd has the devices",
		bundle.MetricsPart+": only a running berthd has metrics")
	b.Machine, b.Config, b.About = out.Machine, out.Config, about
	return b, nil
}
