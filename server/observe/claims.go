package observe

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/server/internal/app"
)

// addClaims adds to living pods the devices that their containers have by claims on dynamic resources. missing is what cannot be added.
// data is dra_manager_state; nil if it is not there or cannot be read.
func addClaims(c config.Config, data []byte, pods []Pod) (with []Pod, missing []string) {
	with = slices.Clone(pods)
	var state kubelet.ClaimState
	known := data != nil
	if known {
		var err error
		if state, err = kubelet.ParseClaims(data); err != nil {
			missing, known = append(missing, err.Error()), false
		}
	}
	held := map[string][]kubelet.ClaimEntry{}
	for _, claim := range state.Claims {
		for _, uid := range claim.Pods {
			held[uid] = append(held[uid], claim)
		}
	}
	var without []string
	for i := range with {
		p := &with[i]
		if p.Ended {
			continue
		}
		of, uid := p.GetMetadata().GetNamespace()+"/"+p.GetMetadata().GetName(), p.GetMetadata().GetUid()
		claims := held[uid]
		delete(held, uid)
		devices, rest := devicesOf(p, claims)
		// The bounds are those of an admission. The file is not berth's, and a pod keeps its CPUs whatever is in it.
		if pod, err := app.NodePod(c, p.Pod); err == nil { // otherwise load says so
			if err := convert.ReadExternalDevices(&pod, devices); err != nil {
				missing = append(missing, fmt.Sprintf("devices of the claims of pod %s: %v", of, err))
				devices = nil
			}
		}
		p.devices = devices
		if len(rest) > 0 {
			missing = append(missing, "which containers of pod "+of+" use its claims: "+textOf(rest))
		}
		if len(claims) == 0 && (len(p.GetSpec().GetResourceClaims()) > 0 || len(p.Claims) > 0) {
			without = append(without, of)
		}
	}
	if len(without) > 0 {
		why := "the kubelet has not prepared them"
		if !known {
			why = "there is no dra_manager_state that can be read"
		}
		missing = append(missing, "claims on dynamic resources, because "+why+": "+strings.Join(without, ", "))
	}
	for _, claim := range state.Claims { // in the order of the file
		for _, uid := range claim.Pods {
			if held[uid] != nil {
				missing = append(missing, fmt.Sprintf("dra_manager_state has an entry of a pod that is not among the pods: pod %s: claim %s",
					kubelet.Printable(uid), claim))
			}
		}
	}
	return with, missing
}

// devicesOf are the devices of a pod's claims, by container. rest are the claims that no container is known to use.
func devicesOf(p *Pod, claims []kubelet.ClaimEntry) (out []*admissionv1.ExternalDevices, rest []kubelet.ClaimEntry) {
	used := map[string]bool{}
	for _, c := range slices.Concat(p.GetSpec().GetInitContainers(), p.GetSpec().GetContainers()) {
		var list []*typesv1.ExternalDevice
		for _, claim := range claims {
			for _, d := range claim.Devices {
				if slices.ContainsFunc(p.Claims[c.GetName()], func(u podspec.ClaimUse) bool {
					return u.Claim == claim.Name && d.IsFor(u.Request)
				}) {
					list = append(list, external(claim.Name, d))
				}
			}
		}
		for _, u := range p.Claims[c.GetName()] {
			used[u.Claim] = true
		}
		if len(list) > 0 {
			out = append(out, &admissionv1.ExternalDevices{ContainerName: c.GetName(), Devices: list})
		}
	}
	for _, claim := range claims {
		if !used[claim.Name] {
			rest = append(rest, claim)
		}
	}
	return out, rest
}

// external is a device of a claim, with the names that berth-nri gives to one.
func external(claim string, d kubelet.ClaimDevice) *typesv1.ExternalDevice {
	id := d.Pool + "/" + d.Device
	if d.Share != "" {
		id += "/" + d.Share
	}
	return &typesv1.ExternalDevice{Resource: d.Driver + "/dra", Id: id, Claim: &typesv1.ExternalClaim{
		Name: claim, Driver: d.Driver, Pool: d.Pool, Device: d.Device, ShareId: d.Share, CdiDevices: d.CDI,
	}}
}

// textOf names claims with their devices.
func textOf(claims []kubelet.ClaimEntry) string {
	var texts []string
	for _, c := range claims {
		texts = append(texts, c.String())
	}
	return strings.Join(texts, ", ")
}
