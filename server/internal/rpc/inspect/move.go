package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
)

// Import implements InspectService.
func (s *service) Import(ctx context.Context, req *inspectv1.ImportRequest) (*inspectv1.ImportResponse, error) {
	kind, vs := readKind(req.GetKind())
	if len(req.GetState()) == 0 {
		vs.Addf("state", "is required")
	}
	owners := containerIDs(req.GetContainerIds(), &vs)
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	pods, err := s.pods(req.GetPods())
	if err != nil {
		return nil, err
	}
	done, err := s.Importer.Import(ctx, importer.Request{
		Kind: kind, Data: req.GetState(), Settings: s.Settings(kind), Pods: pods,
		ContainerIDs: owners, Owner: req.GetOwner(), SkipUnknown: req.GetSkipUnknown(), Force: req.GetForce(), DryRun: req.GetDryRun(),
	})
	if err != nil {
		return nil, err
	}
	out := &inspectv1.ImportResponse{
		Format: uint32(done.Facts.Format), Revision: done.View.Revision(),
		Skipped: done.Facts.Skipped, Notes: done.Facts.Notes, SharedCpus: convert.CPUSet(done.View.SharedCPUs()),
	}
	for _, p := range done.Pods {
		out.Pods = append(out.Pods, &inspectv1.ImportedPod{Pod: allocations.Pod(done.View, p.Pod),
			Outcome: convert.EnumOf[inspectv1.ImportOutcome](p.Outcome)})
	}
	for _, f := range done.Findings {
		out.Findings = append(out.Findings, finding(f))
	}
	return out, nil
}

// readKind reads which state file a request is about.
func readKind(m inspectv1.StateFileKind) (kubelet.Kind, errdefs.Violations) {
	var vs errdefs.Violations
	if m == inspectv1.StateFileKind_STATE_FILE_KIND_UNSPECIFIED {
		vs.Addf("kind", "is required")
	}
	kind := kubelet.Kind(convert.Word(m))
	if len(vs) == 0 && kind == "" {
		vs.Addf("kind", "%d: expected CPU, MEMORY or DEVICE", m)
	}
	return kind, vs
}

// containerIDs reads whom runtime ids stand for.
func containerIDs(m map[string]*typesv1.ContainerRef, vs *errdefs.Violations) map[string]ledger.Owner {
	owners := make(map[string]ledger.Owner, len(m))
	for _, id := range slices.Sorted(maps.Keys(m)) {
		path := fmt.Sprintf("container_ids[%.80q]", id)
		*vs = append(*vs, convert.Names(path, id, path+".pod_uid", m[id].GetPodUid(), path+".container_name", m[id].GetContainerName())...)
		owners[id] = convert.OwnerOf(m[id])
	}
	return owners
}

// pods reads the pods of a request; errors name the place in the list.
func (s *service) pods(list []*typesv1.Pod) ([]workload.Pod, error) {
	pods := make([]workload.Pod, len(list))
	for i, m := range list {
		var err error
		if pods[i], err = s.Read.Pod(m); err == nil {
			continue
		}
		at := fmt.Sprintf("pods[%d]", i)
		if fe := new(errdefs.Error); errors.As(err, &fe) {
			for f := range fe.Fields {
				fe.Fields[f].Field = at + strings.TrimPrefix(fe.Fields[f].Field, "pod")
			}
		}
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return pods, nil
}

// Export implements InspectService.
func (s *service) Export(_ context.Context, req *inspectv1.ExportRequest) (*inspectv1.ExportResponse, error) {
	kind, vs := readKind(req.GetKind())
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	view := s.Ledger.View()
	file, err := kubelet.Write(kind, view, s.Settings(kind), int(min(req.GetFormat(), maxFormat)))
	if err != nil {
		return nil, err
	}
	return &inspectv1.ExportResponse{
		State: file.Data, Format: uint32(file.Format), FileName: file.Name, Revision: view.Revision(),
	}, nil
}

// maxFormat is above every format there will be and fits every int.
const maxFormat = 1 << 20
