package topology

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// TestViolationsNameTheRequest: the violation of a setting names the field of the
// request, and that field exists.
func TestViolationsNameTheRequest(t *testing.T) {
	t.Parallel()
	known := new(topologyv1.SetPolicyRequest).ProtoReflect().Descriptor().Fields()
	for _, f := range fields {
		first, second, deep := strings.Cut(f.field, ".")
		field := known.ByName(protoreflect.Name(first))
		if field == nil || deep && field.Message().Fields().ByName(protoreflect.Name(second)) == nil {
			t.Errorf("a request has no field %s", f.field)
		}
	}
	for setting, want := range map[string]string{
		"topology.policy":              "topology_policy",
		"topology.policyX":             "topology.policyX",
		"memory.reserved[1].limits[a]": "reserved_memory.nodes[1].limits[a]",
		"reserved.cpus":                "reserved_cpus.list",
		"log.level":                    "log.level",
	} {
		var vs errdefs.Violations
		vs.Addf(setting, "is wrong")
		e := new(errdefs.Error)
		if err := ofRequest(fmt.Errorf("set: %w", vs.Err("configuration"))); !errors.As(err, &e) || len(e.Fields) != 1 ||
			e.Fields[0].Field != want {
			t.Errorf("%s: %v", setting, err)
		}
	}
	if err := errdefs.Unavailablef("no"); !errors.Is(ofRequest(err), err) {
		t.Error("another error is changed")
	}
}
