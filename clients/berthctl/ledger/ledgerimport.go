package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/api/yamltext"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

// stateFile reads the value of that flag.
func stateFile(verb, kind string) (inspectv1.StateFileKind, error) {
	which := convert.EnumOf[inspectv1.StateFileKind](kind)
	switch {
	case kind == "":
		return which, command.Usagef(verb, "--kind is missing")
	case which == inspectv1.StateFileKind_STATE_FILE_KIND_UNSPECIFIED:
		return which, command.Usagef(verb, "--kind %q: expected %s", kind, strings.Join(convert.Choices[inspectv1.StateFileKind](), ", "))
	}
	return which, nil
}

// kindFlag is the flag for the kind of a kubelet's state file.
func kindFlag(cmd *cobra.Command, kind *string) {
	kinds := convert.Choices[inspectv1.StateFileKind]()
	cmd.Flags().StringVar(kind, "kind", "", "manager that the state file belongs to: "+strings.Join(kinds, ", "))
	command.Choices(cmd, "kind", kinds...)
}

const importLong = `Import a state file of the kubelet, so that running pods keep their CPUs, memory and devices.

The file names pods by uid only, so the specifications of the node's pods are needed, too, as the API server has them.
Pods without an entry in the file are ignored; admit them as usual. Either the whole file is imported, or nothing.
A file is refused if an entry contradicts the machine, the reserved CPUs or memory, or the requests of its container. With
--force the other entries are imported.`

const importExample = `  kubectl get pods -A --field-selector spec.nodeName=$(hostname) -o json > pods.json
  berthctl ledger import --kind cpu -f /var/lib/kubelet/cpu_manager_state --pods pods.json --dry-run
  berthctl ledger import --kind cpu -f /var/lib/kubelet/cpu_manager_state --pods pods.json`

// importFlags are the flags of ledger import.
type importFlags struct {
	kind, file, pods, containers, owner string
	skip, force, dryRun                 bool
}

func ledgerImport(c *command.Ctl) *cobra.Command {
	var f importFlags
	cmd := c.Verb(command.About{
		Use:   "import --kind KIND -f FILE [--pods FILE] [--dry-run]",
		Short: "Import a state file of the kubelet",
		Long:  importLong, Example: importExample,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		req, err := f.request(ctx, s.Ctl)
		if err != nil {
			return err
		}
		done, err := s.Inspect().Import(ctx, req)
		if err != nil {
			return err
		}
		return s.Show(done, func(w io.Writer) { s.Shared = done.GetSharedCpus(); showImport(s.Ctl, w, req, done) })
	})
	kindFlag(cmd, &f.kind)
	cmd.Flags().StringVarP(&f.file, "filename", "f", "", "the kubelet's state file; - is standard input")
	cmd.Flags().StringVar(&f.pods, "pods", "", "file with the node's pods in YAML or JSON, or a directory of such files")
	cmd.Flags().StringVar(&f.containers, "containers", "",
		`for files of Kubernetes 1.17 and before: JSON file with the containers of the runtime's ids, as {"ID": {"podUid": "UID", "containerName": "NAME"}}`)
	command.OwnerFlag(cmd.Flags(), &f.owner, "owner of the imported pods that are not in the ledger yet")
	cmd.Flags().BoolVar(&f.skip, "skip-unknown", false, "ignore entries of pods that are not given; otherwise the file is refused")
	cmd.Flags().BoolVar(&f.force, "force", false,
		"take the entries that a kubelet would start with on this machine, and list the others; otherwise the file is refused")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the result, but change nothing")
	return cmd
}

// request reads all files.
func (f *importFlags) request(ctx context.Context, c *command.Ctl) (*inspectv1.ImportRequest, error) {
	kind, err := stateFile("ledger import", f.kind)
	if err != nil {
		return nil, err
	}
	if f.file == "" {
		return nil, command.Usagef("ledger import", "-f is missing")
	}
	req := &inspectv1.ImportRequest{Kind: kind, SkipUnknown: f.skip, Force: f.force, DryRun: f.dryRun, Owner: f.owner}
	if req.State, err = input.FileOrStream(ctx, f.file, c.In, input.Most); err != nil {
		return nil, err
	}
	if f.pods != "" {
		if req.Pods, err = loadPods(ctx, c, f.pods); err != nil {
			return nil, err
		}
	}
	if f.containers != "" {
		req.ContainerIds, err = loadContainers(ctx, f.containers)
	}
	return req, err
}

// loadContainers reads the containers of runtime ids.
func loadContainers(ctx context.Context, path string) (map[string]*typesv1.ContainerRef, error) {
	text, err := input.File(ctx, path, input.Most)
	if err != nil {
		return nil, err
	}
	type container struct {
		PodUID string `json:"podUid"`
		Name   string `json:"containerName"`
	}
	var names map[string]container
	err = yamltext.Unmarshal(text, &names) // also without ids that are there twice
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		err = fmt.Errorf("a %s is there instead", wrong.Value) // the library names types of Go
	}
	if err != nil {
		return nil, fmt.Errorf(`%s: expected {"ID": {"podUid": "UID", "containerName": "NAME"}}: %w`, path, err)
	}
	out := make(map[string]*typesv1.ContainerRef, len(names))
	for id, n := range names {
		out[id] = &typesv1.ContainerRef{PodUid: n.PodUID, ContainerName: n.Name}
	}
	return out, nil
}

// loadPods reads the pods of a file, or of every YAML and JSON file in a folder.
func loadPods(ctx context.Context, c *command.Ctl, path string) ([]*typesv1.Pod, error) {
	files, err := command.PodFiles(path, false)
	if err != nil {
		return nil, fmt.Errorf("--pods: %w", err)
	}
	var pods []*typesv1.Pod
	for _, name := range files {
		more, err := podspec.Load(ctx, name, c.In, podspec.Options{Ignored: func(pod, what string) {
			c.Warn("pod %s: %s is ignored", pod, what)
		}})
		if err != nil {
			// Not wrapped: berthd does not know a generated uid.
			return nil, fmt.Errorf("--pods: %v", err) //nolint:errorlint // see above
		}
		pods = append(pods, more...)
	}
	return pods, nil
}

func showImport(c *command.Ctl, w io.Writer, req *inspectv1.ImportRequest, done *inspectv1.ImportResponse) {
	fmt.Fprintf(w, "%s state of format %d: %s taken over, revision %d\n", convert.Word(req.GetKind()), done.GetFormat(),
		table.Count(len(done.GetPods()), "pod"), done.GetRevision())
	if req.GetDryRun() {
		fmt.Fprintln(w, "dry run: nothing was changed")
	}
	if len(done.GetPods()) > 0 {
		fmt.Fprintln(w)
		t := table.New("POD", "BEFORE", "CONTAINER", "CPUS", "OWN")
		for _, p := range done.GetPods() {
			for _, a := range p.GetPod().GetContainers() {
				t.Row(command.PodName(p.GetPod()), convert.Word(p.GetOutcome()), a.GetContainerName(), c.CPUs(a),
					command.YesNo(a.GetExclusiveCpus()))
			}
		}
		fmt.Fprint(w, t)
	}
	var remarks []string
	for _, text := range done.GetSkipped() {
		remarks = append(remarks, "skipped: "+text)
	}
	for _, f := range done.GetFindings() {
		remarks = append(remarks, "kept although today's rules would not allow it: "+f.GetText())
	}
	for _, text := range done.GetNotes() {
		remarks = append(remarks, "note: "+text)
	}
	if len(remarks) > 0 {
		fmt.Fprintln(w)
	}
	for _, text := range remarks {
		fmt.Fprintln(w, command.OneLine(text))
	}
}

const exportLong = `Write the state file that the kubelet would have written. A kubelet that starts with it continues with the same
allocations.

Formats of kind cpu: every kubelet since 1.18 reads v2. Kubelets since 1.36 with the gate PodLevelResourceManagers read
v3, which has CPUs of a whole pod, too. Kubelets since 1.37 read and write v4, which also has the CPUs of resized
containers before their resize. Formats of kind memory: v1, v2 (1.36, memory of a whole pod) and v3 (since 1.37). The
default is the oldest format that can represent the ledger.`

func ledgerExport(c *command.Ctl) *cobra.Command {
	var kind, format, file string
	cmd := c.Verb(command.About{
		Use:   "export --kind KIND [--format vN] [-f FILE]",
		Short: "Export a state file for the kubelet",
		Long:  exportLong,
		Example: `  berthctl ledger export --kind cpu
  berthctl ledger export --kind cpu --format v2 -f /var/lib/kubelet/cpu_manager_state`,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		which, err := stateFile("ledger export", kind)
		if err != nil {
			return err
		}
		req := &inspectv1.ExportRequest{Kind: which}
		if format != "" {
			n, err := strconv.ParseUint(strings.TrimPrefix(format, "v"), 10, 16)
			if err != nil || n == 0 {
				return command.Usagef("ledger export", "--format %s: expected one such as v2", format)
			}
			req.Format = uint32(n)
		}
		state, err := s.Inspect().Export(ctx, req)
		if err != nil {
			return err
		}
		if file != "" && file != "-" {
			return os.WriteFile(file, state.GetState(), 0o600)
		}
		return s.Show(state, func(w io.Writer) { fmt.Fprintf(w, "%s", state.GetState()) })
	})
	kindFlag(cmd, &kind)
	cmd.Flags().StringVar(&format, "format", "", "format to write, such as v2")
	cmd.Flags().StringVarP(&file, "filename", "f", "", "file to write; - or none is standard output")
	return cmd
}
