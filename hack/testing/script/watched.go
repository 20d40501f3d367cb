package script

import (
	"context"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registrationapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// watched is what a plugin serves that waits to be found.
type watched struct {
	registrationapi.UnimplementedRegistrationServer
	p *Plugin
}

// GetInfo returns the plugin's data; its device service is on the same socket.
func (w watched) GetInfo(ctx context.Context, _ *registrationapi.InfoRequest) (*registrationapi.PluginInfo, error) {
	w.p.note(Call{Method: Info})
	if _, err := w.p.begin(ctx, Info); err != nil {
		return nil, err
	}
	info := &registrationapi.PluginInfo{
		Type: registrationapi.DevicePlugin, Name: w.p.Resource,
		SupportedVersions: []string{"v1alpha1", pluginapi.Version},
	}
	if w.p.Config.Info != nil {
		w.p.Config.Info(info)
	}
	return info, nil
}

// NotifyRegistrationStatus records the result of the registration: Error is the received error,
// empty if the plugin is registered.
func (w watched) NotifyRegistrationStatus(ctx context.Context,
	s *registrationapi.RegistrationStatus) (*registrationapi.RegistrationStatusResponse, error) {
	call := Call{Method: Notify, Error: s.GetError()}
	if !s.GetPluginRegistered() && call.Error == "" {
		call.Error = "not registered, and no reason given"
	}
	w.p.note(call)
	if _, err := w.p.begin(ctx, Notify); err != nil {
		return nil, err
	}
	return &registrationapi.RegistrationStatusResponse{}, nil
}
