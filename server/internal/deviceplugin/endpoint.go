package deviceplugin

// Endpoint returns the path of the socket of a resource's plugin, empty while no
// plugin serves the resource.
func (s *Server) Endpoint(resource string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.sessions[resource]; ok {
		return p.path
	}
	return ""
}
