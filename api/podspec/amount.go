package podspec

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

// checkAmounts checks every amount that decides a pod's place, because the decoder of pods reports only that some amount
// somewhere is wrong. A document of another shape is left for the decoder to refuse.
func checkAmounts(doc object) error {
	spec, _ := doc["spec"].(object)
	if err := checkList("pod.spec.overhead", spec["overhead"]); err != nil {
		return err
	}
	for path, amounts := range requirementsOf(doc) {
		if err := checkList("pod."+path, amounts); err != nil {
			return err
		}
	}
	return nil
}

// requirementsOf gives the requests and limits of a pod, and of its containers, by their paths ("spec.containers[0].resources.limits").
func requirementsOf(doc object) iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		spec, _ := doc["spec"].(object)
		holders := []object{spec}
		paths := []string{"spec"}
		for _, kind := range []string{"initContainers", "containers"} {
			list, _ := spec[kind].([]any)
			for i, item := range list {
				c, _ := item.(object)
				holders, paths = append(holders, c), append(paths, fmt.Sprintf("spec.%s[%d]", kind, i))
			}
		}
		for i, holder := range holders {
			r, _ := holder["resources"].(object)
			for _, kind := range []string{"requests", "limits"} {
				if !yield(paths[i]+".resources."+kind, r[kind]) {
					return
				}
			}
		}
	}
}

func checkList(path string, list any) error {
	amounts, _ := list.(object)
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		text := fmt.Sprint(amounts[name])
		switch amounts[name].(type) {
		case string, int64:
		case float64:
			raw, err := json.Marshal(amounts[name])
			if err != nil {
				return fmt.Errorf("%s[%q]: %w", path, name, err)
			}
			text = string(raw)
		default:
			return fmt.Errorf("%s[%q]: expected a Kubernetes quantity such as 2, 500m or 1Gi", path, name)
		}
		if _, err := resource.ParseQuantity(text); err != nil {
			return fmt.Errorf("%s[%q]: %q: expected a Kubernetes quantity such as 2, 500m or 1Gi", path, name, text)
		}
	}
	return nil
}
