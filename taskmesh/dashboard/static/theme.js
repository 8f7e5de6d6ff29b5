// Before the first paint: light or dark as chosen here before, else as the system has it.
const chosen = localStorage.getItem("taskmesh-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
