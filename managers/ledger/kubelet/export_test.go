package kubelet

import "fmt"

// ParseDevice reads the device manager's checkpoint by itself.
func ParseDevice(data []byte) (DeviceState, error) {
	s, err := parseDevice(data)
	if err != nil {
		return s, fmt.Errorf("read kubelet_internal_checkpoint: %w", err)
	}
	return s, nil
}
