"""Tools for agents: an MCP server over the workspace, its limits and its access control."""
