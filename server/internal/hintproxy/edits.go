package hintproxy

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// editKinds maps the fields of ContainerEdits to kinds of container edits. Each kind can be
// abused: a mount or a device can expose the whole machine, a variable can be LD_PRELOAD.
var editKinds = map[protoreflect.Name]string{
	"envs":        "env",
	"mounts":      "mounts",
	"devices":     "devices",
	"annotations": "annotations",
	"cdi_devices": "cdi",
}

// checkEdits refuses container edits that the configuration does not allow the provider. It
// also refuses unknown fields, because the agent may know them.
func (p *proxy) checkEdits(resource string, edits *typesv1.ContainerEdits) error {
	if edits == nil {
		return nil
	}
	allowed, _ := p.config.allowance(p.Name())
	var foreign []string
	unknown := hasUnknown(edits.ProtoReflect())
	edits.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if kind := editKinds[field.Name()]; !slices.Contains(allowed.Edits, kind) {
			foreign = append(foreign, kind)
		}
		return true
	})
	switch {
	case unknown:
		return p.wrongAnswer(resource, "its grant for %s has fields that container edits do not have", resource)
	case len(foreign) > 0:
		slices.Sort(foreign)
		err := errdefs.PermissionDeniedf("provider %s may not change containers so: its grant for %s has %s, and providers.external.allow does not have edits of that kind for it",
			p.Name(), resource, strings.Join(foreign, ", "))
		err.Provider, err.Resource = p.Name(), resource
		return err
	}
	return nil
}

// hasUnknown returns whether a message, or a message in it, has unknown fields.
func hasUnknown(m protoreflect.Message) (found bool) {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				found = found || hasUnknown(v.List().Get(i).Message())
			}
		default:
			found = found || hasUnknown(v.Message())
		}
		return !found
	})
	return found
}
