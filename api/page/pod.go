package page

import (
	"bytes"
	"fmt"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/podspec"
)

// readPod reads the pod of a trial from YAML or JSON as admit --dry-run --generate-uid does, and returns what that warns of.
func readPod(text []byte) (pod *typesv1.Pod, ignored []string, err error) {
	pods, err := podspec.Decode(bytes.NewReader(text), podspec.Options{
		GenerateUID: true, Ignored: func(_, what string) { ignored = append(ignored, what) },
	})
	if err != nil {
		return nil, nil, err
	}
	if len(pods) != 1 {
		return nil, nil, fmt.Errorf("expected one pod, found %d", len(pods))
	}
	return pods[0], ignored, nil
}
