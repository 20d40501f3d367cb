package kubeletnode

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
)

// dropIn is a drop-in with some fields.
func dropIn(name string, fields map[string]any) (config.File, error) {
	doc := map[string]any{}
	maps.Copy(doc, fields)
	doc["apiVersion"], doc["kind"] = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	data, err := json.Marshal(doc)
	return config.File{Path: name, Data: data}, err
}

// parse returns the value of a field for the text of a flag.
func (f form) parse(value string) (any, error) {
	switch f {
	case number:
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, errdefs.Invalidf("expected a number")
		}
		return n, nil
	case boolean:
		return parseBool(value)
	case list:
		return strings.Split(value, ","), nil
	case texts, booleans, thresholds:
		return f.parseMap(value)
	case reserved:
		return parseReserved(value)
	default:
		return value, nil
	}
}

func parseBool(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, errdefs.Invalidf("expected true or false")
	}
	return b, nil
}

// parseMap reads a=b,c=d, or a<b,c<d for thresholds.
func (f form) parseMap(value string) (any, error) {
	sign := "="
	if f == thresholds {
		sign = "<"
	}
	out := map[string]any{}
	for _, pair := range strings.Split(value, ",") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(strings.TrimSpace(pair), sign)
		if !ok {
			return nil, errdefs.Invalidf("%q: expected NAME%sVALUE", pair, sign)
		}
		out[key] = value
		if f == booleans {
			on, err := parseBool(value)
			if err != nil {
				return nil, errdefs.Invalidf("%q: %w", pair, err)
			}
			out[key] = on
		}
	}
	return out, nil
}

// parseReserved reads 0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=1Gi.
func parseReserved(value string) (any, error) {
	out := []any{}
	for _, part := range strings.Split(value, ";") {
		if part == "" {
			continue
		}
		node, amounts, ok := strings.Cut(part, ":")
		id, err := strconv.Atoi(node)
		if !ok || err != nil {
			return nil, errdefs.Invalidf("%q: expected NODE:NAME=AMOUNT", part)
		}
		limits, err := texts.parseMap(amounts)
		if err != nil {
			return nil, err
		}
		out = append(out, map[string]any{"numaNode": id, "limits": limits})
	}
	return out, nil
}
